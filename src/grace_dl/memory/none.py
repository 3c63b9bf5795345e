"""No memory: the compression error is dropped (correct for unbiased and lossless methods)."""

from __future__ import annotations

from torch import Tensor

from ..compressor.base import Compressor, Payload
from ..key import Key
from .base import Memory, Pending


class NoneMemory(Memory):
    """Keeps nothing, not even the gradient of a step in progress."""

    def begin(self, grad: Tensor, key: Key, compressor: Compressor, out: Payload | None = None) -> Pending:
        payload, ctx = compressor.encode(grad, key, out)
        return Pending(key, compressor, grad.new_empty(0), payload, ctx)

    def commit(self, pending: Pending) -> None:
        """Nothing to record."""
