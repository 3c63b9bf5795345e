"""Counters of bytes, collectives and seconds."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Stats:
    """Totals of one rank since it began."""

    steps: int = 0
    skipped: int = 0
    """Steps skipped because a gradient was not finite on some rank."""
    collectives: int = 0
    dense_bytes: int = 0
    """Uncompressed size of the gradients."""
    payload_bytes: int = 0
    """Bytes that this rank passed to collectives, including headers; of `hierarchical` those between nodes."""
    leaving_bytes: int = 0
    """Bytes sent from this rank to others; depends on the collective and the number of ranks."""
    between_bytes: int = 0
    """Of `leaving_bytes`, those that `hierarchical` sent to other nodes. Other methods do not know nodes and count none."""
    choice: str = ""
    """What the method `auto` uses at present; empty for other methods."""
    seconds: dict[str, float] = field(default_factory=lambda: {"compress": 0.0, "wait": 0.0, "decode": 0.0})

    @property
    def ratio(self) -> float:
        """How many times smaller the payload is than the gradients."""
        return self.dense_bytes / self.payload_bytes if self.payload_bytes else float("nan")

    def __add__(self, other: Stats) -> Stats:
        counts = [f.name for f in dataclasses.fields(self) if f.name not in ("choice", "seconds")]
        total = {name: getattr(self, name) + getattr(other, name) for name in counts}
        seconds = {part: self.seconds[part] + other.seconds[part] for part in self.seconds}
        return Stats(**total, choice=other.choice or self.choice, seconds=seconds)

    def copy(self) -> Stats:
        return dataclasses.replace(self, seconds=dict(self.seconds))

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - start
