"""EDEN: a random rotation spreads the energy evenly, then each coordinate is quantised to 1 to 4 bits."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec
from ..compressor.codec import KernelCodec
from ..kernels import Kernels, Source
from ..kernels.faults import RESULT_NOT_FINITE, Fault
from ..kernels.wire import EDEN_BLOCK, EDEN_CENTROIDS, eden_sizes
from ..key import Key
from ..registry import register
from ..settings import choice


@register("eden", family="quantiser", bits="1 to 4", reference="Vargaftik 2022, ICML")
class EdenCompressor(KernelCodec):
    """Rotates blocks of 4096 elements at random and quantises each coordinate to `bits` bits, with a scale for each block.

        R = H D2 H D1 (Hadamard matrix, random signs),  q = nearest centroids of a normal distribution to R x
        Q(x) = s · Rᵀ q,  s = |x|² / ⟨R x, q⟩, which makes E Q(x) = x

    bits: 1 to 4 per coordinate. The rotation's seed is part of the payload, so every rank draws its own: errors of
        different ranks are independent and average out.
    scale: "unbiased" makes the expectation of the decoded block the block itself. "least_squares" minimizes its error, which
        is what error feedback needs: with 1 bit 0.36 instead of 0.57 of the block's square norm. None: chosen by the memory in
        use.
    """

    biased = False
    elementwise = True

    def __init__(self, bits: int = 1, scale: str | None = None) -> None:
        super().__init__()
        self.bits = choice("bits", bits, (1, 2, 3, 4), "the bits a coordinate is quantised to")
        why = "unbiased without a memory, least squares with error feedback; None chooses by the memory"
        self.scale = choice("scale", scale, ("unbiased", "least_squares", None), why)

    def paired(self, feedback: bool) -> EdenCompressor:
        if self.scale is not None:
            return self
        decided = copy.copy(self)
        decided.scale = "least_squares" if feedback else "unbiased"
        return decided

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        coordinates, blocks = eden_sizes(numel)
        return ((torch.uint8, coordinates * self.bits // 8), (dtype, blocks), (torch.int64, 1))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        codes, scales, seed = out
        word = key.word()
        seed.fill_(word - (1 << 64) if word >> 63 else word)
        feedback = source.leave == "residual" if self.scale is None else self.scale == "least_squares"
        kernel.eden_encode(source, self.bits, feedback, word, codes, scales)
        return out

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault | None:
        # The rotation can add up all of a block in one element; whether it does, only decoding shows.
        fault = kernel.check_scales(payload[1], most / (EDEN_BLOCK * EDEN_CENTROIDS[self.bits][-1]))
        return None if isinstance(fault, int) and fault == RESULT_NOT_FINITE else fault

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        codes, scales, seed = payload
        word = int(seed.item()) & 0xFFFFFFFFFFFFFFFF
        kernels.of(out).eden_add(out, codes, scales, self.bits, word, alpha)
