"""Stochastic rounding to evenly spaced levels with one scale per block: shared by int8, int4 and qsgd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from .. import kernels
from ..kernels import Kernels, Source
from ..kernels.faults import Fault, worst
from ..kernels.wire import Payloads, blocks, packed_bytes
from ..key import Key
from .base import Context, Payload, Spec, work_dtype
from .codec import BucketCodec


class BlockCompressor(BucketCodec):
    """Sends q in -levels…levels per element, where q / levels times the block's scale has expectation x."""

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
            (torch.uint8, packed_bytes(numel, self.bits)),
            (work_dtype(dtype), blocks(numel, self.block)),
        )

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        kernel.block_encode(source, self.block, self.levels, self.bits, self.norm, key.word(), *out)
        return out

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        codes, scales = payload
        found = kernel.check_scales(scales, most)
        return worst(found, kernel.check_codes(codes, ctx.numel, self.bits, 2 * self.levels))

    def _accumulate(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        codes, scales = payload
        kernels.of(out).block_add(out, codes, scales, self.block, self.levels, self.bits)

    def _combine(
        self, kernel: Kernels, outs: Sequence[Tensor], payloads: Payloads, ctxs: Sequence[Context]
    ) -> None:
        divisor = self._divisor(len(payloads[0]))
        kernel.block_combine_(outs, payloads, divisor, self.block, self.levels, self.bits)
