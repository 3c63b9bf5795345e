"""Bytes that really leave a rank, read from its host's network interface, beside those that statistics report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..errors import GraceError
from ..helper import grace_from_params
from .hosts import INTERFACE

CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("none, allreduce", {"compressor": "none"}),
    ("none, allgather", {"compressor": "none", "communicator": "allgather"}),
    ("int8, alltoall", {"compressor": "int8", "communicator": "alltoall"}),
    ("int8, allgather", {"compressor": "int8", "communicator": "allgather"}),
    ("int8, broadcast", {"compressor": "int8", "communicator": "broadcast"}),
    ("topk 1 %, allgather", {"compressor": "topk", "compress_ratio": 0.01}),
)


def worker(
    rank: int, world: int, emit: Callable[[Any], None], numel: int, rounds: int
) -> list[dict[str, Any]]:
    """Exchange a tensor of `numel` elements several times in each way; per step and rank."""
    torch.set_num_threads(1)
    grad = torch.randn(numel, generator=torch.Generator().manual_seed(rank))
    records = []
    for label, params in CASES:
        grc = grace_from_params(params)
        grc.step(grad, "w")
        dist.barrier()
        before, stats = _sent(), grc.stats.copy()
        for _ in range(rounds):
            grc.step(grad, "w")
        dist.barrier()
        measured = torch.tensor([float(_sent() - before)])
        dist.all_reduce(measured)
        record = {
            "label": label,
            "params": params,
            "workers": world,
            "numel": numel,
            "payload_bytes": (grc.stats.payload_bytes - stats.payload_bytes) / rounds,
            "leaving_bytes": (grc.stats.leaving_bytes - stats.leaving_bytes) / rounds,
            "measured_bytes": measured.item() / world / rounds,
        }
        records.append(record)
        emit(("record", record))
    return records


def _sent() -> int:
    """Bytes this host's interface has sent, protocol headers included."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == INTERFACE:
            return int(counters.split()[8])
    raise GraceError(f"interface {INTERFACE} is not here: run this on a host made by `grace bench traffic`.")
