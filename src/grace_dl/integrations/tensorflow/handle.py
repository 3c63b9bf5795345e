"""The handle for TensorFlow, which exchanges all gradients of a step in one call.

In eager mode it is called directly, in a graph through one `tf.py_function`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import torch

from ...algebra.base import Method
from ...errors import UnsupportedError
from ...handle import Handle
from ...pipeline.bucket import fill, packed
from ...session import Session
from ...transport._horovod_core import horovod_transport, initialise
from ...transport.local import LocalTransport
from ..reducer import BUCKET_BYTES
from .tensors import ALIGN, subnormals, to_tensorflow, to_torch


class TensorHandle(Handle):
    """Averages (or sums) lists of gradients over ranks.

    `plain`: Horovod's own all-reduce, for `tf.IndexedSlices`, which are sent as indices and values without compression.
    """

    def __init__(
        self,
        method: Method,
        *,
        process_set: Any,
        sum_: bool = False,
        sparse_as_dense: bool = False,
        passes: int = 1,
        average_passes: bool = False,
        plain: Any = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.passes = passes
        self._sum = sum_
        self._sparse_as_dense = sparse_as_dense
        self._average_passes = average_passes
        self._plain = plain
        self._bucket_bytes = bucket_bytes
        self._passed = 0
        self._added: list[torch.Tensor] = []
        initialise()  # on all ranks, including those outside the process set
        self.included = bool(process_set.included())
        super().__init__(
            Session(method, horovod_transport(process_set) if self.included else LocalTransport())
        )

    def _busy(self) -> bool:
        return self._passed > 0

    # Symbolic or eager tensors -------------------------------------------------------------------------

    def __call__(
        self, gradients: Sequence[Any], variables: Sequence[Any], scale: Any = None
    ) -> tuple[Any, list[Any]]:
        """Return (whether the step is complete, gradients); with several passes per step, the last completes it."""
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

    # Memory ------------------------------------------------------------------------------------------

    def _exchange(self, names: list[str], scaled: bool, *tensors: Any) -> list[Any]:
        with subnormals():
            return self._exchanged(names, scaled, *tensors)

    def _exchanged(self, names: list[str], scaled: bool, *tensors: Any) -> list[Any]:
        if scaled:
            *tensors, scale = tensors  # type: ignore[assignment]
            self.session.set_loss_scale(float(scale))
        views = [to_torch(tensor) for tensor in tensors]
        if self.passes > 1:
            views = self._accumulate(views)
            if self._passed:
                return [False, *tensors]
        driver = self.session.driver()
        results: dict[int, torch.Tensor] = {}
        try:
            for number, places in enumerate(self._buckets(views)):
                chosen = [views[place] for place in places]
                # Methods that encode a whole bucket need it without gaps; otherwise results are aligned for TensorFlow.
                unit = 1 if self.session.whole_buckets else ALIGN // chosen[0].element_size()
                bucket = packed(("tensorflow", number), [names[place] for place in places], chosen, unit)
                results.update((place, s.view) for place, s in zip(places, bucket.segments))
                driver.launch(bucket)
            driver.finish()
        except BaseException as error:
            driver.discard(error)
            raise
        if self._sum:
            for result in results.values():
                result.mul_(self.session.transport.size)
        # An empty gradient has nothing to exchange.
        return [True, *(to_tensorflow(results[p]) if p in results else t for p, t in enumerate(tensors))]

    def _accumulate(self, views: list[torch.Tensor]) -> list[torch.Tensor]:
        """Accumulate the gradients of several passes; `_passed` is reset to 0 after the last one."""
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
        """Indices of non-empty gradients by dtype, last first, in buckets of limited size."""
        places = [place for place in reversed(range(len(views))) if views[place].numel()]
        return fill(places, self._bucket_bytes, lambda p: views[p].dtype, lambda p: views[p].nbytes)


def name_of(variable: Any, place: int) -> str:
    """The key of a variable's state: a Keras variable's path, a TensorFlow variable's name or a tensor's position."""
    path = getattr(variable, "path", None)
    if isinstance(path, str):
        return path
    try:
        return str(variable.name).removesuffix(":0")
    except (AttributeError, ValueError):  # eager tensors have no name
        return f"source.{place}"


def unique(names: list[str]) -> list[str]:
    """Make names unique: a second `kernel` becomes `kernel.1`."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        count = seen.get(name, 0)
        seen[name] = count + 1
        result.append(f"{name}.{count}" if count else name)
    return result
