"""TernGrad: one of three values per element."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec, work_dtype
from ..compressor.codec import KernelCodec
from ..kernels import Kernels, Source
from ..kernels.wire import trit_bytes
from ..key import Key
from ..registry import register

CLIP = 2.5
"""Clip at this many standard deviations (Wen et al. 2017, section 4.2)."""


@register(
    "terngrad",
    family="quantiser",
    bits="1.6",
    reference="Wen 2017, NeurIPS",
    warn={
        "residual": "its error is as large as the gradient, so that feeding it back diverges; use no memory."
    },
)
class TernGradCompressor(KernelCodec):
    """Clips at 2.5 sigma, then sends sign times scale with probability abs(x) / scale, or zero."""

    biased = False

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, trit_bytes(numel)), (work_dtype(dtype), 1))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        kernel.ternary_encode(source, CLIP, key.word(), *out)
        return out

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).ternary_add(out, *payload)
