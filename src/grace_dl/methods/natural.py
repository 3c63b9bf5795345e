"""Natural compression: powers of two."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec
from ..compressor.codec import KernelCodec
from ..kernels import Kernels, Source
from ..kernels.wire import NATURAL_BLOCK, blocks
from ..key import Key
from ..registry import register


@register("natural", family="lower precision", bits="8", reference="Horváth 2019, arXiv:1905.10988")
class NaturalCompressor(KernelCodec):
    """Rounds stochastically to a power of two: a sign and an exponent below the largest of its block."""

    biased = False
    elementwise = True

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, numel), (torch.int16, blocks(numel, NATURAL_BLOCK)))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        kernel.natural_encode(source, key.word(), *out)
        return out

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).natural_add(out, *payload)
