"""TernGrad: one of three values per element."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec, work_dtype
from ..compressor.codec import BucketCodec
from ..kernels import Kernels, Source
from ..kernels.faults import Fault, worst
from ..kernels.wire import Payloads, trit_bytes
from ..key import Key
from ..registry import register

CLIP = 2.5
"""Clip at this many standard deviations (Wen et al. 2017, section 4.2)."""


@register(
    "terngrad",
    family="quantiser",
    bits="1.6",
    reference="Wen 2017, NeurIPS",
    memories=("none", "residual"),
    warn={
        "residual": "its error is as large as the gradient, so that feeding it back diverges; use no memory."
    },
)
class TernGradCompressor(BucketCodec):
    """Clips at 2.5 sigma, then sends sign times scale with probability abs(x) / scale, or zero.

        s = min(max|x|, 2.5 σ),  σ² = mean(x²)
        Q(x) = s · sign(x) with probability min(|x|, s) / s, else 0

    Five elements take one byte.
    """

    biased = False
    elementwise = True

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, trit_bytes(numel)), (work_dtype(dtype), 1))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        kernel.ternary_encode(source, CLIP, key.word(), *out)
        return out

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        codes, scale = payload
        found = kernel.check_scales(scale, most)
        return worst(found, kernel.check_codes(codes, codes.numel(), 8, 242))

    def _accumulate(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).ternary_add(out, *payload)

    def _combine(
        self, kernel: Kernels, outs: Sequence[Tensor], payloads: Payloads, ctxs: Sequence[Context]
    ) -> None:
        kernel.ternary_combine_(outs, payloads, self._divisor(len(payloads[0])))
