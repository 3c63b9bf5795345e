"""Sketch: each element is sent as the number of its quantile bucket and decoded to the bucket's mean."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec
from ..compressor.sparse import FlatCodec, check_parts
from ..errors import ConfigError
from ..kernels.reference.bits import packed_bytes
from ..key import Key
from ..registry import register


@register("sketch", family="quantiser", bits="log2(quantiles)", reference="Jiang 2018 (SketchML), SIGMOD")
class SketchCompressor(FlatCodec):
    """Codes elements by quantile bucket; a bucket is decoded to the mean of its elements.

    quantiles: how many buckets, a power of two from 2 to 256.
    """

    elementwise = True

    def __init__(self, quantiles: int = 64) -> None:
        super().__init__()
        if isinstance(quantiles, bool) or quantiles not in (2, 4, 8, 16, 32, 64, 128, 256):
            raise ConfigError(
                f"quantiles={quantiles!r} must be a power of two from 2 to 256, so that codes fill whole bits."
            )
        self.quantiles = int(quantiles)

    @property
    def _bits(self) -> int:
        return self.quantiles.bit_length() - 1

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, packed_bytes(numel, self._bits)), (dtype, self.quantiles if numel else 0))

    def _run(
        self, x: Tensor, g: Tensor | None, beta: float, gamma: float, ef: bool, key: Key, out: Payload | None
    ) -> Payload:
        payload = self.allocate(x.numel(), x.dtype, x.device) if out is None else out
        kernels.of(x).sketch_encode(x, g, beta, gamma, ef, self._bits, *payload)
        return payload

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        check_parts(payload, self.spec(out.numel(), out.dtype))
        kernels.of(out).sketch_add(out, *payload, self._bits, alpha)
