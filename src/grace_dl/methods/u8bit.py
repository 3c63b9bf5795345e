"""Dettmers' eight-bit floats by a dynamic tree."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec, work_dtype
from ..compressor.fused import FusedCodec
from ..key import Key
from ..registry import register


@register("u8bit", family="lower precision", bits="8", reference="Dettmers 2015, ICLR 2016")
class U8bitCompressor(FusedCodec):
    """A sign and the nearest of 128 magnitudes spread over seven decades below the largest element."""

    elementwise = True

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, numel), (work_dtype(dtype), 1))

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
        kernel.u8bit_encode(x, g, beta, gamma, ef, *out)

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).u8bit_add(out, *payload)
