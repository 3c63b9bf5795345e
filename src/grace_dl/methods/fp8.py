"""Eight-bit floats with a scale per block."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec, work_dtype
from ..compressor.codec import KernelCodec
from ..kernels import Kernels, Source
from ..kernels.wire import FP8_BLOCK, blocks
from ..key import Key
from ..registry import register


@register("fp8", family="lower precision", bits="8.1", reference="Micikevicius 2022, arXiv:2209.05433")
class FP8Compressor(KernelCodec):
    """e4m3 floats, scaled so that the largest of each block of 256 is exact."""

    elementwise = True

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, numel), (work_dtype(dtype), blocks(numel, FP8_BLOCK)))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        kernel.fp8_encode(source, FP8_BLOCK, *out)
        return out

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        codes, scales = payload
        kernels.of(out).fp8_add(out, codes, scales, FP8_BLOCK)
