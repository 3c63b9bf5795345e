"""Natural compression: powers of two."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec, work_dtype
from ..compressor.codec import BucketCodec
from ..kernels import Kernels, Source
from ..kernels.faults import Fault
from ..kernels.wire import NATURAL_BLOCK, NATURAL_EXPONENTS, Payloads, blocks
from ..key import Key
from ..registry import register


@register("natural", family="lower precision", bits="8", reference="Horváth 2019, arXiv:1905.10988")
class NaturalCompressor(BucketCodec):
    """Rounds stochastically to a power of two: a sign and an exponent below the largest of its block.

        2^a ≤ |x| ≤ 2^(a+1):  Q(x) = sign(x) · 2^(a+1) with probability |x| / 2^a - 1, else sign(x) · 2^a

    These are the two powers of two around x, with probabilities that make the rounding unbiased.
    """

    biased = False
    elementwise = True

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, numel), (torch.int16, blocks(numel, NATURAL_BLOCK)))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        kernel.natural_encode(source, key.word(), *out)
        return out

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        low, high = NATURAL_EXPONENTS[work_dtype(ctx.dtype)]
        return kernel.check_exponents(payload[1], low, high, math.frexp(most)[1] - 1)

    def _accumulate(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).natural_add(out, *payload)

    def _combine(
        self, kernel: Kernels, outs: Sequence[Tensor], payloads: Payloads, ctxs: Sequence[Context]
    ) -> None:
        kernel.natural_combine_(outs, payloads, self._divisor(len(payloads[0])))
