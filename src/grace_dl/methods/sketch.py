"""Sketch: each element is sent as the number of its quantile bucket and decoded to the bucket's mean."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec
from ..compressor.codec import KernelCodec
from ..kernels import Kernels, Source
from ..kernels.faults import MEAN_NOT_FINITE, Fault, worst
from ..kernels.wire import packed_bytes
from ..key import Key
from ..registry import register
from ..settings import choice


@register("sketch", family="quantiser", bits="log2(quantiles)", reference="Jiang 2018 (SketchML), SIGMOD")
class SketchCompressor(KernelCodec):
    """Codes each element by its quantile bucket; a bucket is decoded to the mean of its elements.

        Q(x) = mean of the elements between the two quantiles around x

    quantiles: the number of buckets, a power of two from 2 to 256.
    """

    elementwise = True

    def __init__(self, quantiles: int = 64) -> None:
        super().__init__()
        why = "powers of two, so that codes fill whole bits"
        self.quantiles = choice("quantiles", quantiles, (2, 4, 8, 16, 32, 64, 128, 256), why)

    @property
    def _bits(self) -> int:
        return self.quantiles.bit_length() - 1

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, packed_bytes(numel, self._bits)), (dtype, self.quantiles if numel else 0))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        kernel.sketch_encode(source, self._bits, *out)
        return out

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        codes, means = payload
        found = kernel.check_values(means, most, MEAN_NOT_FINITE)
        return worst(found, kernel.check_padding(codes, ctx.numel, self._bits))

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        codes, means = payload
        kernels.of(out).sketch_add(out, codes, means, self._bits, alpha)
