"""Stochastic rounding to evenly spaced levels with one scale per block: shared by int8, int4 and qsgd."""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

import torch
from torch import Tensor

from .. import kernels
from ..key import Key
from .base import Context, Payload, Spec, work_dtype
from .fused import FusedCodec


class BlockCompressor(FusedCodec):
    """Sends q in -levels…levels an element, where q / levels times the block's scale has expectation x."""

    biased = False
    elementwise = True
    block: ClassVar[int]
    levels: ClassVar[int]
    norm: ClassVar[str] = "max"

    @property
    def bits(self) -> int:
        """Bits of a code: ceil(log2(2 levels + 1))."""
        return (2 * self.levels).bit_length()

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return (
            (torch.uint8, (numel * self.bits + 7) // 8),
            (work_dtype(dtype), -(-numel // self.block)),
        )

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
        kernel.block_encode(
            x, g, beta, gamma, ef, self.block, self.levels, self.bits, self.norm, key.word(), *out
        )

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).block_add(out, *payload, self.block, self.levels, self.bits)
