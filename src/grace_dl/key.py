"""Keys of random draws: all randomness is a pure function of a `Key` and an element's index."""

from __future__ import annotations

import hashlib
from typing import NamedTuple


class Key(NamedTuple):
    """Where in a run a tensor is compressed: which tensor, which step, which rank, under which seed.

    `workers` and `summed` describe how payloads are sent; no draw depends on them.

    >>> Key("w", step=3).word() == Key("w", step=3).word()
    True
    >>> Key("w", rank=0).word("shared") == Key("w", rank=1).word("shared")
    False
    >>> Key("w", rank=0).shared_word() == Key("w", rank=1).shared_word()
    True
    """

    name: str
    seed: int = 0
    step: int = 0
    rank: int = 0
    workers: int = 1
    """How many ranks take part."""
    summed: bool = False
    """Payloads of all ranks are summed during the exchange and decoded once."""

    def word(self, stream: str = "") -> int:
        """64 random bits for this rank; `stream` separates several draws of one method."""
        return _hash(f"{self.seed}/{self.step}/{self.rank}/{stream}/{self.name}")

    def shared_word(self, stream: str = "") -> int:
        """64 random bits that are the same on every rank."""
        return _hash(f"{self.seed}/{self.step}/shared/{stream}/{self.name}")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
