"""TernGrad: three values an element."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec, work_dtype
from ..compressor.fused import FusedCodec
from ..key import Key
from ..registry import register

CLIP = 2.5
"""Clip at so many standard deviations (Wen et al. 2017, section 4.2)."""


@register(
    "terngrad",
    family="quantiser",
    bits="1.6",
    reference="Wen 2017, NeurIPS",
    warn={
        "residual": "its error is as large as the gradient, so that feeding it back diverges; use no memory."
    },
)
class TernGradCompressor(FusedCodec):
    """Clips at 2.5 sigma, then sends sign times scale with probability abs(x) / scale, or zero."""

    biased = False

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, -(-numel // 5)), (work_dtype(dtype), 1))

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
        kernel.ternary_encode(x, g, beta, gamma, ef, CLIP, key.word(), *out)

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).ternary_add(out, *payload)
