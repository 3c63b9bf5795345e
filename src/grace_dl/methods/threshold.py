"""Threshold: every element whose magnitude reaches a given value."""

from __future__ import annotations

import torch

from ..compressor.base import Payload
from ..compressor.sparse import IndexedCodec, check_value_dtype, value_dtype
from ..errors import PayloadError
from ..kernels import Kernels, Source
from ..kernels.check import payload_parts
from ..kernels.wire import Sent, index_bytes
from ..key import Key
from ..registry import register
from ..settings import number


@register(
    "threshold",
    family="sparsifier",
    bits="varies: value + coded index an element sent",
    reference="Strom 2015, Interspeech",
    communicator={1: "allgather", 5: "sparse_allreduce"},
)
class ThresholdCompressor(IndexedCodec):
    """Sends the elements with |x| >= threshold; their number depends on the data and may be zero.

        Q(x) = x if |x| ≥ threshold, else 0

    threshold: the smallest magnitude that is sent, in units of the gradient.
    value_dtype: "float16" or "bfloat16" halves the values on the wire; None sends the gradient's own precision.
    """

    def __init__(self, threshold: float = 0.01, value_dtype: str | None = None) -> None:
        super().__init__()
        why = "elements of at least that magnitude are sent"
        self.threshold = number("threshold", threshold, why, least=0)
        self.value_dtype = check_value_dtype(value_dtype)

    def allocate(self, numel: int, dtype: torch.dtype, device: torch.device | None = None) -> Payload:
        """Sizes depend on the data: only the payload of an empty tensor can be allocated in advance."""
        kinds = () if numel else (value_dtype(self.value_dtype, dtype), torch.uint8)
        return [torch.empty(0, dtype=kind, device=device) for kind in kinds]

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        kind = value_dtype(self.value_dtype, source.x.dtype)
        return list(kernel.threshold_encode(source, self.threshold, kind))

    def check(self, payload: Payload, numel: int, dtype: torch.dtype) -> None:
        self._sent(payload, numel, dtype)

    def _sent(self, payload: Payload, numel: int, dtype: torch.dtype) -> Sent:
        count = payload[0].numel() if payload else 0
        if count > numel:
            raise PayloadError(f"{count} values arrived for {numel} elements: a peer sent a broken payload.")
        kind = value_dtype(self.value_dtype, dtype)
        payload_parts(payload, ((kind, count), (torch.uint8, index_bytes(numel, count))))
        return payload[0], payload[1], None
