"""No memory: the compression error is dropped (correct for unbiased and lossless methods)."""

from __future__ import annotations

from .base import Memory, Pending


class NoneMemory(Memory):
    """Keeps nothing."""

    def commit(self, pending: Pending) -> None:
        """Nothing to record."""
