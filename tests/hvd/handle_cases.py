"""The contract of handles on the ranks of Horovod: PyTorch's optimizer, TensorFlow's tape, and the optimizers of both Keras.

Each check of `handles.contract` becomes a function of this module for each target, named by `Check.at`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import horovod.tensorflow
import horovod.torch as hvd
import keras
import tensorflow as tf
import tf_keras
import torch

import grace_dl.tensorflow
import grace_dl.torch
from grace_dl import Handle, Method
from grace_dl.algebra.text import as_method
from handles.contract import CHECKS
from handles.targets import BUCKET_BYTES, SHAPES, OptimizerTarget, Target, Tensors

hvd.init()


def leave() -> None:
    hvd.shutdown()


class HorovodOptimizerTarget(OptimizerTarget):
    """`hvd.DistributedOptimizer(optimizer, grace=…)` of PyTorch."""

    def attach(self, method: Method | str) -> Handle:
        plain = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.optimizer = hvd.DistributedOptimizer(
            plain, named_parameters=self.model.named_parameters(), grace=as_method(method)
        )
        return self.adopt(self.optimizer.grace)  # type: ignore[attr-defined]


class TensorFlowTarget(Target):
    """Something that exchanges the gradients of TensorFlow's variables."""

    has_backward = False
    handle: Any

    def __init__(self, method: Method | str) -> None:
        self.variables = [tf.Variable(tf.zeros(shape), name=name) for name, shape in SHAPES.items()]
        super().__init__(method)

    def attach(self, method: Method | str) -> Handle:
        self.handle = self.made(as_method(method))
        self.handle._bucket_bytes = BUCKET_BYTES
        return self.handle

    def made(self, method: Method) -> Any:
        raise NotImplementedError

    def step(self, grads: Tensors, during: Callable[[], None] | None = None) -> Tensors:
        results = self.exchanged([tf.constant(grads[name].numpy()) for name in SHAPES])
        return {name: torch.tensor(result.numpy()) for name, result in zip(SHAPES, results, strict=True)}

    def exchanged(self, grads: list[Any]) -> list[Any]:
        raise NotImplementedError


class TapeTarget(TensorFlowTarget):
    """`hvd.DistributedGradientTape(tape, grace=…)`."""

    def made(self, method: Method) -> Any:
        return grace_dl.tensorflow.handle(method)

    def exchanged(self, grads: list[Any]) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(v * g) for v, g in zip(self.variables, grads, strict=True)])
        tape = horovod.tensorflow.DistributedGradientTape(tape, grace=self.handle)
        found: list[Any] = tape.gradient(loss, self.variables)
        return found


class KerasTarget(TensorFlowTarget):
    """`hvd.DistributedOptimizer(optimizer, grace=…)` of Keras 3; a step from zero at rate 1 shows the gradient."""

    def __init__(self, method: Method | str) -> None:
        super().__init__(method)
        self.variables = [keras.Variable(tf.zeros(shape), name=name) for name, shape in SHAPES.items()]

    def made(self, method: Method) -> Any:
        self.optimizer = horovod.tensorflow.DistributedOptimizer(self.plain(), grace=method)
        return self.optimizer.grace

    def plain(self) -> Any:
        return keras.optimizers.SGD(learning_rate=1.0)

    def exchanged(self, grads: list[Any]) -> list[Any]:
        for variable in self.variables:
            variable.assign(tf.zeros(variable.shape))
        self.apply(grads)
        return [-tf.convert_to_tensor(variable) for variable in self.variables]

    def apply(self, grads: list[Any]) -> None:
        self.optimizer.apply(grads, self.variables)


class Keras2Target(KerasTarget):
    """The same with tf_keras."""

    def __init__(self, method: Method | str) -> None:
        TensorFlowTarget.__init__(self, method)

    def plain(self) -> Any:
        return tf_keras.optimizers.SGD(learning_rate=1.0)

    def apply(self, grads: list[Any]) -> None:
        self.optimizer.apply_gradients(list(zip(grads, self.variables, strict=True)))


TARGETS = [HorovodOptimizerTarget, TapeTarget, KerasTarget, Keras2Target]


globals().update(
    {
        check.at(target.__name__): partial(check.work, hvd.rank(), hvd.size(), target, *check.arguments)
        for target in TARGETS
        for check in CHECKS
    }
)
