"""No memory: what is not sent is lost (right for unbiased and lossless methods)."""

from __future__ import annotations

from .base import Memory, Pending


class NoneMemory(Memory):
    """Keeps nothing."""

    def commit(self, pending: Pending) -> None:
        """Nothing to record."""
