"""1-bit SGD."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec, work_dtype
from ..compressor.codec import DeferredResidualCodec
from ..kernels import Kernels, Source
from ..kernels.wire import packed_bytes
from ..key import Key
from ..registry import register


@register("onebit", family="signs", bits="1", reference="Seide 2014, Interspeech")
class OneBitCompressor(DeferredResidualCodec):
    """Signs, decoded to the mean of the negative elements and the mean of the others."""

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, packed_bytes(numel, 1)), (work_dtype(dtype), 2))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        kernel.onebit_encode(source, *out)
        return out

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).onebit_add(out, *payload)
