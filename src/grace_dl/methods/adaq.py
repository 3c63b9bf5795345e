"""AdaQ: the largest positive and the largest negative elements, each side sent as one mean and its indices."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec
from ..compressor.sparse import SparseCodec, check_ratio
from ..kernels import Kernels, Source
from ..kernels.faults import Fault
from ..kernels.wire import adaq_slots, index_bytes, packed_bytes
from ..key import Key
from ..registry import register


@register(
    "adaq",
    family="sparsifier",
    bits="ratio x (1 + coded index)",
    reference="Dryden 2016, MLHPC",
    communicator={1: "allgather", 16: "sparse_allreduce"},
)
class AdaqCompressor(SparseCodec):
    """Sends the top share of positives and of negatives, each as its mean, with coded indices and one sign bit each.

        S⁺, S⁻ = the largest share of the positive and of the negative elements
        Q(x) = mean(S⁺) in S⁺, mean(S⁻) in S⁻, else 0

    ratio: the share of each side that is sent; at least one element if there is any.
    """

    def __init__(self, ratio: float = 0.01) -> None:
        super().__init__()
        self.ratio = check_ratio(ratio)

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        slots = adaq_slots(self.ratio, numel)
        coded = (torch.uint8, index_bytes(numel, slots)), (torch.uint8, packed_bytes(slots, 1))
        return ((dtype, 2), (torch.int32, 2), *coded)

    def chosen(self, numel: int) -> int:
        return adaq_slots(self.ratio, numel)

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        ratio = self.ratio
        kernel.adaq_encode(source, ratio, adaq_slots(ratio, source.x.numel()), *out)
        return out

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        means, counts, index, signs = payload
        return kernel.check_adaq(
            means, counts, index, signs, ctx.numel, adaq_slots(self.ratio, ctx.numel), most
        )

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        means, counts, index, signs = payload
        slots = adaq_slots(self.ratio, out.numel())
        kernels.of(out).adaq_add(out, means, counts, index, signs, slots, alpha)
