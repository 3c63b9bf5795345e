"""1-bit SGD."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec, work_dtype
from ..compressor.twosided import TwoSidedCodec
from ..registry import register


@register("onebit", family="signs", bits="1", reference="Seide 2014, Interspeech")
class OneBitCompressor(TwoSidedCodec):
    """Signs, decoded to the mean of the negative elements and the mean of the others."""

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, (numel + 7) // 8), (work_dtype(dtype), 2))

    def _sides(
        self,
        kernel: ModuleType,
        x: Tensor,
        g: Tensor | None,
        beta: float,
        gamma: float,
        owed: Tensor | None,
        out: Payload,
    ) -> None:
        kernel.onebit_encode(x, g, beta, gamma, owed, *out)

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).onebit_add(out, *payload)
