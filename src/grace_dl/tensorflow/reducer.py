"""The gradients of a step, exchanged in one call: directly when eager, through one `tf.py_function` in a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import torch

from ..communicator.base import Communicator
from ..errors import UnsupportedError
from ..pipeline.bucket import Bucket, Segment, check
from ..pipeline.exchange import Exchange
from ..pipeline.reducer import BUCKET_BYTES
from ..transport._horovod_core import horovod_transport, initialise
from .tensors import ALIGN, subnormals, to_tensorflow, to_torch


class TensorReducer:
    """Averages (or sums) lists of gradients over ranks.

    `plain`: Horovod's own all-reduce, for `tf.IndexedSlices`, which travel as indices and values without compression.
    """

    def __init__(
        self,
        communicator: Communicator,
        *,
        process_set: Any,
        sum_: bool = False,
        sparse_as_dense: bool = False,
        passes: int = 1,
        average_passes: bool = False,
        plain: Any = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.communicator = communicator
        self.passes = passes
        self._process_set = process_set
        self._sum = sum_
        self._sparse_as_dense = sparse_as_dense
        self._average_passes = average_passes
        self._plain = plain
        self._bucket_bytes = bucket_bytes
        self._passed = 0
        self._added: list[torch.Tensor] = []
        initialise()  # by all ranks, whether they belong to the process set or not
        self.included = bool(process_set.included())
        if self.included and not _fits(communicator, process_set):
            communicator.transport = horovod_transport(process_set)

    # Where gradients are symbols or eager tensors ------------------------------------------------------

    def __call__(
        self, gradients: Sequence[Any], variables: Sequence[Any], scale: Any = None
    ) -> tuple[Any, list[Any]]:
        """(whether a step is complete, the gradients): with several passes per step, only the last completes one."""
        results = list(gradients)
        if not self.included:
            return True, results
        names = unique([name_of(v, place) for place, v in enumerate(variables)])
        dense: list[int] = []
        for place, gradient in enumerate(results):
            if gradient is None:
                continue
            if isinstance(gradient, tf.IndexedSlices):
                if self._sparse_as_dense:
                    results[place] = tf.convert_to_tensor(gradient)
                elif self.passes > 1:
                    raise UnsupportedError(
                        f"the gradient of {names[place]!r} is a tf.IndexedSlices, which is not added up over "
                        "backward passes; use sparse_as_dense=True, or backward_passes_per_step=1."
                    )
                else:
                    results[place] = self._plain(gradient)
                    continue
            dense.append(place)
        if not dense:
            return True, results
        inputs = [results[place] for place in dense]
        chosen = [names[place] for place in dense]
        complete, *outputs = self._cross(inputs, chosen, scale)
        for place, output in zip(dense, outputs):
            results[place] = output
        return complete, results

    def _cross(self, inputs: list[Any], names: list[str], scale: Any) -> list[Any]:
        extra = [] if scale is None else [tf.cast(scale, tf.float32)]
        if tf.executing_eagerly():
            return self._exchange(names, bool(extra), *inputs, *extra)

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def call(*tensors: Any) -> list[Any]:
            return self._exchange(names, bool(extra), *tensors)

        outputs = tf.py_function(call, [*inputs, *extra], [tf.bool, *(t.dtype for t in inputs)])
        for output, given in zip(outputs[1:], inputs):
            output.set_shape(given.shape)
        return [outputs[0] if self.passes > 1 else True, *outputs[1:]]

    # Where they are memory ----------------------------------------------------------------------------

    def _exchange(self, names: list[str], scaled: bool, *tensors: Any) -> list[Any]:
        with subnormals():
            return self._exchanged(names, scaled, *tensors)

    def _exchanged(self, names: list[str], scaled: bool, *tensors: Any) -> list[Any]:
        if scaled:
            *tensors, scale = tensors  # type: ignore[assignment]
            self.communicator.set_loss_scale(float(scale))
        views = [to_torch(tensor) for tensor in tensors]
        if self.passes > 1:
            views = self._accumulate(views)
            if self._passed:
                return [False, *tensors]
        self._rejoin()
        exchange = Exchange(self.communicator)
        results: dict[int, torch.Tensor] = {}
        buffers = []
        try:
            for number, places in enumerate(self._buckets(views)):
                buffer, segments, flat = self._fill(places, views, names)
                buffers.append(buffer)
                results.update((place, s.view) for place, s in zip(places, segments))
                exchange.launch(Bucket(("tensorflow", id(self), number), segments, flat))
            exchange.finish()
        except BaseException:
            exchange.discard()
            raise
        if self._sum:
            for buffer in buffers:
                buffer.mul_(self.communicator.transport.size)
        # An empty gradient has nothing to exchange.
        return [True, *(to_tensorflow(results[p]) if p in results else t for p, t in enumerate(tensors))]

    def _accumulate(self, views: list[torch.Tensor]) -> list[torch.Tensor]:
        """Add up the gradients of several passes; `_passed` is 0 again when the last of them has come."""
        if self._passed == 0:
            self._added = [view.clone() for view in views]
        else:
            for total, view in zip(self._added, views):
                total += view
        self._passed = (self._passed + 1) % self.passes
        if self._passed == 0 and self._average_passes:
            for total in self._added:
                total /= self.passes
        return self._added

    def _buckets(self, views: list[torch.Tensor]) -> list[list[int]]:
        """Places of non-empty gradients by dtype, last first, in buckets of limited size."""
        buckets: list[list[int]] = []
        open_: dict[torch.dtype, tuple[list[int], int]] = {}
        for place in reversed(range(len(views))):
            view = views[place]
            if not view.numel():
                continue
            bucket, weight = open_.get(view.dtype, ([], 0))
            if not bucket:
                buckets.append(bucket)
            bucket.append(place)
            weight += view.nbytes
            open_[view.dtype] = ([], 0) if weight >= self._bucket_bytes else (bucket, weight)
        return buckets

    def _fill(
        self, places: list[int], views: list[torch.Tensor], names: list[str]
    ) -> tuple[torch.Tensor, list[Segment], torch.Tensor | None]:
        """A fresh bucket: TensorFlow keeps its memory as the results, and its inputs must stay as they are."""
        first = views[places[0]]
        check(first, names[places[0]])
        # Methods that take a bucket as a whole need it without gaps; for the others, results are aligned for TensorFlow.
        unit = 1 if self.communicator.compressor.whole_bucket else ALIGN // first.element_size()
        offsets, cursor = [], 0
        for place in places:
            offsets.append(cursor)
            cursor += -(-views[place].numel() // unit) * unit
        buffer = torch.empty(cursor, dtype=first.dtype, device=first.device)
        segments = []
        for place, offset in zip(places, offsets):
            flat = buffer[offset : offset + views[place].numel()]
            view = flat.view(views[place].shape)
            view.copy_(views[place])
            segments.append(Segment(names[place], flat, view))
        return buffer, segments, buffer if unit == 1 else None

    def _rejoin(self) -> None:
        transport: Any = self.communicator.transport
        if getattr(transport, "stale", False):
            self.communicator.rejoin(horovod_transport(self._process_set), list(self.communicator._steps))


def _fits(communicator: Communicator, process_set: Any) -> bool:
    """Whether the communicator works on this process set already, as from the second tape of a loop on."""
    transport: Any = communicator._transport
    current = getattr(transport, "process_set", None)
    return current is not None and current.ranks == process_set.ranks and not transport.stale


def name_of(variable: Any, place: int) -> str:
    """The name state is kept by: a Keras variable's path, a TensorFlow variable's name, a tensor's place."""
    path = getattr(variable, "path", None)
    if isinstance(path, str):
        return path
    try:
        return str(variable.name).removesuffix(":0")
    except (AttributeError, ValueError):  # eager tensors have no name
        return f"source.{place}"


def unique(names: list[str]) -> list[str]:
    """Names told apart: a second `kernel` becomes `kernel.1`."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        count = seen.get(name, 0)
        seen[name] = count + 1
        result.append(f"{name}.{count}" if count else name)
    return result
