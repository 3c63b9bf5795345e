"""Top-k: the largest magnitudes, exactly k of them."""

from __future__ import annotations

import torch

from ..compressor.base import Payload, Spec
from ..compressor.sparse import IndexedCodec, check_ratio, check_value_dtype, value_dtype
from ..kernels import Kernels, Source
from ..kernels.check import payload_parts
from ..kernels.wire import Sent, index_bytes, selected
from ..key import Key
from ..registry import register


@register(
    "topk",
    family="sparsifier",
    bits="ratio x (value + coded index)",
    reference="Aji & Heafield 2017, EMNLP",
    communicator={1: "allgather", 5: "sparse_allreduce"},
)
class TopKCompressor(IndexedCodec):
    """Sends the k largest magnitudes with coded indices.

        S = the k largest |x|,  k = ratio · d
        Q(x) = x in S, else 0

    ratio: share of the elements sent, k = ratio * d rounded, at least 1. Ties are broken by the lowest
    index, so that every backend selects the same elements.
    value_dtype: "float16" or "bfloat16" halves the values on the wire; None sends the gradient's own precision.
    """

    def __init__(self, ratio: float = 0.01, value_dtype: str | None = None) -> None:
        super().__init__()
        self.ratio = check_ratio(ratio)
        self.value_dtype = check_value_dtype(value_dtype)

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        k = selected(self.ratio, numel)
        return ((value_dtype(self.value_dtype, dtype), k), (torch.uint8, index_bytes(numel, k)))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        values, index = out
        kernel.topk_encode(source, values.numel(), values, index)
        return out

    def _sent(self, payload: Payload, numel: int, dtype: torch.dtype) -> Sent:
        payload_parts(payload, self.spec(numel, dtype))
        return payload[0], payload[1], None
