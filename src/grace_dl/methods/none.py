"""No compression: the baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from ..compressor.base import Context, Payload, Spec
from ..compressor.codec import Codec
from ..kernels import Kernels
from ..kernels.faults import Fault
from ..key import Key
from ..registry import register


@register("none", family="lower precision", bits="32", reference="plain all-reduce")
class NoneCompressor(Codec):
    """Sends the tensor uncompressed."""

    sums = True
    biased = False
    elementwise = True
    whole_bucket = True
    lossless = True

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((dtype, numel),)

    def _encode(self, x: Tensor, key: Key, out: Payload | None) -> Payload:
        if out is None:
            return [x]
        out[0].copy_(x)
        return out

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        return kernel.check_values(payload[0], most)

    def _accumulate(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        out.add_(payload[0].view_as(out))
