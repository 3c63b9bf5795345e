"""Natural compression: powers of two."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec
from ..compressor.fused import FusedCodec
from ..kernels.reference import NATURAL_BLOCK
from ..key import Key
from ..registry import register


@register("natural", family="lower precision", bits="8", reference="Horváth 2019, arXiv:1905.10988")
class NaturalCompressor(FusedCodec):
    """Rounds stochastically to a power of two: a sign and an exponent below the largest of its block."""

    biased = False
    elementwise = True

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, numel), (torch.int16, -(-numel // NATURAL_BLOCK)))

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
        kernel.natural_encode(x, g, beta, gamma, ef, key.word(), *out)

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).natural_add(out, *payload)
