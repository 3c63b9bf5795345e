"""Threshold: every element whose magnitude reaches a given number."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Payload
from ..compressor.sparse import IndexedCodec, check_parts, check_value_dtype, value_dtype
from ..errors import ConfigError, PayloadError
from ..kernels.reference.indices import index_bytes
from ..kernels.reference.sparse import Sent
from ..key import Key
from ..registry import register


@register(
    "threshold",
    family="sparsifier",
    bits="varies: value + coded index an element sent",
    reference="Strom 2015, Interspeech",
)
class ThresholdCompressor(IndexedCodec):
    """Sends the elements with |x| >= threshold; how many depends on the data, and none is fine.

    threshold: the magnitude from which an element is sent, in units of the gradient.
    value_dtype: "float16" or "bfloat16" halves the values on the wire; None sends the gradient's own precision.
    """

    def __init__(self, threshold: float = 0.01, value_dtype: str | None = None) -> None:
        super().__init__()
        if (
            isinstance(threshold, bool)
            or not isinstance(threshold, (int, float))
            or not 0 <= threshold < math.inf
        ):
            raise ConfigError(
                f"threshold={threshold!r} must be a finite number, 0 or above; elements of at least that magnitude "
                "are sent."
            )
        self.threshold = float(threshold)
        self.value_dtype = check_value_dtype(value_dtype)

    def allocate(self, numel: int, dtype: torch.dtype, device: torch.device | None = None) -> Payload:
        """The payload of nothing: sizes depend on the data."""
        kind = value_dtype(self.value_dtype, dtype)
        return [torch.empty(0, dtype=kind, device=device), torch.empty(0, dtype=torch.uint8, device=device)]

    def _run(
        self, x: Tensor, g: Tensor | None, beta: float, gamma: float, ef: bool, key: Key, out: Payload | None
    ) -> Payload:
        kind = value_dtype(self.value_dtype, x.dtype)
        return list(kernels.of(x).threshold_encode(x, g, beta, gamma, ef, self.threshold, kind))

    def _sent(self, payload: Payload, numel: int, dtype: torch.dtype) -> Sent:
        count = payload[0].numel() if payload else 0
        if count > numel:
            raise PayloadError(f"{count} values arrived for {numel} elements: a peer sent a broken payload.")
        kind = value_dtype(self.value_dtype, dtype)
        check_parts(payload, ((kind, count), (torch.uint8, index_bytes(numel, count))))
        return payload[0], payload[1], count
