"""What ranks tell each other when they decide, and how fast the network between them is."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..pipeline.request import Sum
from ..plan.cluster import Link
from ..plan.network import messages
from ..transport import Transport
from . import timing

SMALL, LARGE = 64, 128 * 1024
"""Elements of the all-reduces that are timed: 256 bytes and half a megabyte."""


def gather(transport: Transport, figures: Sequence[float], device: torch.device) -> list[list[float]]:
    """The figures of all ranks, by rank: the same on every rank."""
    mine = torch.tensor(figures, dtype=torch.float64, device=device)
    out = torch.empty(transport.size * mine.numel(), dtype=torch.float64, device=device)
    transport.allgather(out, mine).wait()
    rows: list[list[float]] = out.view(transport.size, -1).tolist()
    return rows


def broadcast(transport: Transport, figures: Sequence[float], device: torch.device) -> list[float]:
    """The figures of rank 0, on every rank; the others pass as many."""
    box = torch.tensor(figures, dtype=torch.float64, device=device)
    transport.broadcast(box, 0).wait()
    found: list[float] = box.tolist()
    return found


def probe(transport: Transport, device: torch.device) -> tuple[float, float]:
    """Seconds of a small and of a large all-reduce on this rank. All ranks call it.

    The second large one counts: the first uses up what a link may send in a burst.
    """
    small = min(_seconds(transport, SMALL, device) for _ in range(3))
    return small, [_seconds(transport, LARGE, device) for _ in range(2)][1]


def _seconds(transport: Transport, count: int, device: torch.device) -> float:
    tensor = torch.zeros(count, device=device)
    start = timing.now()
    transport.allreduce(tensor).wait()
    tensor[0].item()  # collectives on a device end when their result is read
    return timing.now() - start


def link_of(small: float, large: float, workers: int, engine: str) -> Link:
    """The link that explains two all-reduces.

    >>> found = link_of(small=0.0002, large=0.0422, workers=2, engine="gloo")
    >>> round(found.bits / 1e6), found.latency
    (100, 0.0001)
    """
    leaving = 2 * 4 * (LARGE - SMALL) * (workers - 1) / workers
    bits = 8 * leaving / max(large - small, 1e-6)
    return Link(max(bits, 1e4), min(small / messages(Sum, workers, engine), 1.0), goodput=1.0)
