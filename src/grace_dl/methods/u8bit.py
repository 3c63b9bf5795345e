"""Dettmers' eight-bit floats by a dynamic tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec, work_dtype
from ..compressor.codec import BucketCodec
from ..kernels import Kernels, Source
from ..kernels.faults import Fault
from ..kernels.wire import Payloads
from ..key import Key
from ..registry import register


@register("u8bit", family="lower precision", bits="8", reference="Dettmers 2015, ICLR 2016")
class U8bitCompressor(BucketCodec):
    """A sign and the nearest of 128 magnitudes spread over seven decades below the largest element.

        s = max|x|,  Q(x) = s · sign(x) · (the nearest magnitude t of the table to |x| / s)

    The tensor has one scale s.
    """

    elementwise = True

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, numel), (work_dtype(dtype), 1))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        kernel.u8bit_encode(source, *out)
        return out

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        return kernel.check_scales(payload[1], most)

    def _accumulate(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).u8bit_add(out, *payload)

    def _combine(
        self, kernel: Kernels, outs: Sequence[Tensor], payloads: Payloads, ctxs: Sequence[Context]
    ) -> None:
        kernel.u8bit_combine_(outs, payloads, self._divisor(len(payloads[0])))
