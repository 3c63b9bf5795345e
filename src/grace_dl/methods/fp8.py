"""Eight-bit floats with a scale per block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec, work_dtype
from ..compressor.codec import BucketCodec
from ..kernels import Kernels, Source
from ..kernels.faults import Fault, worst
from ..kernels.wire import E4M3_MAX, FP8_BLOCK, Payloads, blocks
from ..key import Key
from ..registry import register


@register("fp8", family="lower precision", bits="8.1", reference="Micikevicius 2022, arXiv:2209.05433")
class FP8Compressor(BucketCodec):
    """e4m3 floats, scaled so that the largest of each block of 256 is exact.

        s = max|x| / 448 for each block,  Q(x) = s · e4m3(x / s), rounded to nearest even

    448 is the largest number of e4m3. Every block sends its scale s.
    """

    elementwise = True

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, numel), (work_dtype(dtype), blocks(numel, FP8_BLOCK)))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        kernel.fp8_encode(source, FP8_BLOCK, *out)
        return out

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        codes, scales = payload
        nan = kernel.check_codes(codes, ctx.numel, 8, 0x7E, mask=0x7F)
        return worst(kernel.check_scales(scales, most / E4M3_MAX), nan)

    def _accumulate(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        codes, scales = payload
        kernels.of(out).fp8_add(out, codes, scales, FP8_BLOCK)

    def _combine(
        self, kernel: Kernels, outs: Sequence[Tensor], payloads: Payloads, ctxs: Sequence[Context]
    ) -> None:
        kernel.fp8_combine_(outs, payloads, self._divisor(len(payloads[0])), FP8_BLOCK)
