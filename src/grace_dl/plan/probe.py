"""Measures the network of a running process group: latency and rate of its all-reduce."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from ..pipeline.request import Sum
from .cluster import Link
from .network import messages

SMALL, ROUGH, LARGE = 256, 64 * 1024, 4 * 2**20
"""Elements of the all-reduces that are timed: latency dominates the first, the rate the last."""
REPEATS = 5
WANTED = 0.5
"""Seconds that the last may take; on a slow link it is smaller than `LARGE`, but never smaller than eight times `ROUGH`."""


def probe(group: Any = None, device: str = "cpu", *, large: int = LARGE) -> Link:
    """The link between the ranks of a process group, as its all-reduce uses it. All ranks call it, and get the same result.

    `bits` is the rate that payload reaches, so `goodput` is 1. `large`: the most elements to send at once.
    """
    workers = dist.get_world_size(group)
    if workers == 1:
        return Link(float("inf"), 0.0, goodput=1.0)
    small, rough = (_seconds(count, group, device) for count in (SMALL, ROUGH))
    large = min(large, max(8 * ROUGH, int(ROUGH * WANTED / rough)))  # ranks have the same figures
    big = _seconds(large, group, device)
    steps = messages(Sum, workers, "nccl" if device == "cuda" else "gloo")
    leaving = 2 * 4 * (large - SMALL) * (workers - 1) / workers
    found = torch.tensor(
        [8 * leaving / max(big - small, 1e-9), small / steps], dtype=torch.float64, device=device
    )
    dist.broadcast(found, dist.get_global_rank(group, 0) if group is not None else 0, group=group)
    bits, latency = found.tolist()
    return Link(bits, latency, goodput=1.0)


def _seconds(count: int, group: Any, device: str) -> float:
    """The shortest time of an all-reduce on the slowest rank; other load can only add to it."""
    tensor = torch.zeros(count, device=device)
    times = []
    for turn in range(REPEATS + 1):
        dist.barrier(group)
        start = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        if device == "cuda":
            torch.cuda.synchronize()
        if turn:  # the first makes connections
            times.append(time.perf_counter() - start)
    slowest = torch.tensor([min(times)], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    return float(slowest.item())
