"""Lines of users' scripts under Horovod with TensorFlow, and classes written with its operations."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()

from grace_dl.tensorflow import Communicator, Compressor, Memory  # noqa: E402
from grace_dl.tensorflow.communicator.allgather import Allgather  # noqa: E402
from grace_dl.tensorflow.compressor.topk import TopKCompressor  # noqa: E402
from grace_dl.tensorflow.helper import grace_from_params  # noqa: E402
from grace_dl.tensorflow.memory.residual import ResidualMemory  # noqa: E402


def leave() -> None:
    hvd.shutdown()


class Signs(Compressor):
    def compress(self, tensor: Any, name: str) -> Any:
        flat = tf.reshape(tensor, [-1])
        return [flat >= 0, tf.reduce_mean(tf.abs(flat))], tf.shape(tensor)

    def decompress(self, tensors: Any, ctx: Any) -> Any:
        positive, mean = tensors
        return tf.reshape(tf.where(positive, mean, -mean), ctx)


class Owed(Memory):
    def __init__(self) -> None:
        self.residuals: dict[str, Any] = {}

    def compensate(self, tensor: Any, name: str) -> Any:
        if name not in self.residuals:
            self.residuals[name] = self.init_var(tf.zeros_like(tensor))
        return tensor + self.residuals[name]

    def update(self, tensor: Any, name: str, compressor: Any, tensor_compressed: Any, ctx: Any) -> Any:
        sent = compressor.decompress(tensor_compressed, ctx)
        return [self.residuals[name].assign(tensor - sent)]


class Averaging(Communicator):
    def send_receive(self, tensors: Any, ctx: Any) -> Any:
        return hvd.allreduce(self.compressor.decompress(tensors, ctx), op=hvd.Average)


def _gradients(grc: Any, graph: bool) -> list[np.ndarray]:
    """Three steps of a loop that makes a tape each."""
    weight = tf.Variable(tf.random.stateless_normal([40, 50], seed=[0, 0]), name="weight")

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weight))
        tape = hvd.DistributedGradientTape(tape, grace=grc)
        return tape.gradient(loss, weight)

    run = tf.function(step) if graph else step
    return [run(tf.random.stateless_normal([16, 40], seed=[hvd.rank(), i])).numpy() for i in range(3)]


def guide() -> list[list[np.ndarray]]:
    params = {"compressor": "topk", "memory": "residual", "communicator": "allgather"}
    return [
        _gradients(grc, graph)
        for graph in (False, True)
        for grc in (Allgather(TopKCompressor(0.3), ResidualMemory(), hvd.size()), grace_from_params(params))
    ]


def steps() -> list[Any]:
    """`step` with a name, of a built-in communicator and of one's own."""
    x = tf.ones([30, 50]) * (hvd.rank() + 1)
    found = [
        grc.step(x, name="w:0")
        for grc in (grace_from_params({"compressor": "none"}), Averaging(Signs(), Owed()))
    ]
    return [result.numpy() for result in found]


def own() -> dict[str, list[np.ndarray]]:
    made = {
        "compressor and memory": lambda: Allgather(Signs(), Owed(), hvd.size()),
        "memory": lambda: Allgather(TopKCompressor(0.3), Owed()),
        "built-in": lambda: Allgather(TopKCompressor(0.3), ResidualMemory()),
        "all": lambda: Averaging(Signs(), Owed()),
        "compressor and communicator": lambda: Averaging(Signs(), ResidualMemory()),
        "communicator": lambda: Averaging(TopKCompressor(0.3), ResidualMemory()),
    }
    found = {kind: _gradients(make(), graph=False) for kind, make in made.items()}
    found["in a graph"] = _gradients(made["compressor and memory"](), graph=True)
    return found
