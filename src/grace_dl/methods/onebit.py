"""1-bit SGD."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec, work_dtype
from ..compressor.codec import DeferredResidualCodec
from ..kernels import Kernels, Source
from ..kernels.faults import Fault
from ..kernels.wire import Payloads, packed_bytes
from ..key import Key
from ..registry import register


@register("onebit", family="signs", bits="1", reference="Seide 2014, Interspeech")
class OneBitCompressor(DeferredResidualCodec):
    """Signs, decoded to the mean of the negative elements and the mean of the others.

        Q(x) = mean(x where x < 0) if x < 0, else mean(x where x ≥ 0)

    Both means are sent with the signs.
    """

    elementwise = True

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, packed_bytes(numel, 1)), (work_dtype(dtype), 2))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        kernel.onebit_encode(source, *out)
        return out

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        return kernel.check_means(payload[1], most)

    def _accumulate(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).onebit_add(out, *payload)

    def _combine(
        self, kernel: Kernels, outs: Sequence[Tensor], payloads: Payloads, ctxs: Sequence[Context]
    ) -> None:
        kernel.onebit_combine_(outs, payloads, self._divisor(len(payloads[0])))
