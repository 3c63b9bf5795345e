"""AdaQ: the largest positive and the largest negative elements, each side sent as one mean and its places."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec
from ..compressor.sparse import SparseCodec, check_parts, check_ratio, kept
from ..kernels.reference.indices import index_bytes
from ..key import Key
from ..registry import register


@register("adaq", family="sparsifier", bits="ratio x (1 + coded index)", reference="Dryden 2016, MLHPC")
class AdaqCompressor(SparseCodec):
    """Sends the top share of positives and of negatives, each as its mean, with coded indices and one sign bit each.

    ratio: the share of either side that is sent, at least one element where there is any.
    """

    def __init__(self, ratio: float = 0.01) -> None:
        super().__init__()
        self.ratio = check_ratio(ratio)

    def _slots(self, numel: int) -> int:
        # Each side rounds by itself and sends at least one, which together takes up to two more than the ratio.
        return min(numel, kept(self.ratio, numel) + 2)

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        slots = self._slots(numel)
        bits = index_bytes(numel, slots)
        return ((dtype, 2), (torch.int32, 2), (torch.uint8, bits), (torch.uint8, (slots + 7) // 8))

    def _run(
        self, x: Tensor, g: Tensor | None, beta: float, gamma: float, ef: bool, key: Key, out: Payload | None
    ) -> Payload:
        payload = self.allocate(x.numel(), x.dtype, x.device) if out is None else out
        ratio, slots = self.ratio, self._slots(x.numel())
        kernels.of(x).adaq_encode(x, g, beta, gamma, ef, ratio, slots, *payload)
        return payload

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        check_parts(payload, self.spec(out.numel(), out.dtype))
        kernels.of(out).adaq_add(out, *payload, self._slots(out.numel()), alpha)
