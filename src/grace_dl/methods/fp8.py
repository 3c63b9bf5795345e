"""Eight-bit floats with a scale per block."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec, work_dtype
from ..compressor.fused import FusedCodec
from ..key import Key
from ..registry import register

BLOCK = 256


@register("fp8", family="lower precision", bits="8.1", reference="Micikevicius 2022, arXiv:2209.05433")
class FP8Compressor(FusedCodec):
    """e4m3 floats, scaled so that the largest of each block of 256 is exact."""

    elementwise = True

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, numel), (work_dtype(dtype), -(-numel // BLOCK)))

    def _fused(
        self,
        kernel: ModuleType,
        x: Tensor,
        g: Tensor | None,
        beta: float,
        gamma: float,
        ef: bool,
        key: Key,
        out: Payload,
    ) -> None:
        kernel.fp8_encode(x, g, beta, gamma, ef, BLOCK, *out)

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).fp8_add(out, *payload, BLOCK)
