"""EDEN: a random rotation spreads the energy evenly, then each coordinate is quantised to 1 to 4 bits."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec
from ..compressor.codec import KernelCodec
from ..kernels import Kernels, Source
from ..kernels.check import payload_parts
from ..kernels.wire import eden_sizes
from ..key import Key
from ..registry import register
from ..settings import choice


@register("eden", family="quantiser", bits="1 to 4", reference="Vargaftik 2022, ICML")
class EdenCompressor(KernelCodec):
    """Rotates blocks of 4096 elements at random and quantises each coordinate to `bits` bits, with an unbiased scale.

    bits: 1 to 4 per coordinate. The rotation's seed is part of the payload, so every rank draws its own: errors of
    different ranks are independent and average out.
    """

    biased = False
    elementwise = True

    def __init__(self, bits: int = 1) -> None:
        super().__init__()
        self.bits = choice("bits", bits, (1, 2, 3, 4), "the bits a coordinate is quantised to")

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        coordinates, blocks = eden_sizes(numel)
        return ((torch.uint8, coordinates * self.bits // 8), (dtype, blocks), (torch.int64, 1))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        codes, scales, seed = out
        word = key.word()
        seed.fill_(word - (1 << 64) if word >> 63 else word)
        kernel.eden_encode(source, self.bits, word, codes, scales)
        return out

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        payload_parts(payload, self.spec(out.numel(), out.dtype))
        codes, scales, seed = payload
        word = int(seed.item()) & 0xFFFFFFFFFFFFFFFF
        kernels.of(out).eden_add(out, codes, scales, self.bits, word, alpha)
