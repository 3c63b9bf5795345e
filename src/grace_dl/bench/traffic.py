"""`grace bench traffic`: bytes that leave a rank, from its host's network interface, compared with those reported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..console import output
from ..errors import ConfigError, GraceError
from ..integrations.attach import manual
from ..workers import Emit, run_workers
from . import tables, virtual_hosts
from .results import Results

METHODS = (
    "none:communicator=allreduce",
    "none:communicator=allgather",
    "int8:communicator=alltoall",
    "int8:communicator=allgather",
    "int8:communicator=broadcast",
    "topk:0.01,communicator=allgather",
)
"""The default methods: one for every communicator."""

ROUNDS = 5


def measure_traffic(
    methods: Sequence[str], out: Path, *, workers: Sequence[int], numel: int, fresh: bool = False
) -> None:
    """Exchange a tensor with each method, for every number of hosts."""
    if numel < 1 or min(workers) < 1:
        raise ConfigError("--numel and --workers must be positive.")
    virtual_hosts.check_able("Without them no interface counts the bytes")
    console = output()
    results = Results(out, "traffic", {"numel": numel}, fresh)
    for count in workers:
        missing = [method for method in methods if f"{count}/{method}" not in results]
        if not missing:
            continue
        with virtual_hosts.Hosts(count, "unlimited") as place, console.status(f"{count} hosts"):
            for record in run_workers(worker, count, missing, numel, place=place.place())[0]:
                results.add(f"{count}/{record['method']}", record)
    console.print(tables.heading(results.header))
    console.print(tables.traffic_table(list(results.records.values())))
    console.print(f"Results: {out.resolve()}", soft_wrap=True)


def worker(rank: int, world: int, emit: Emit, methods: Sequence[str], numel: int) -> list[dict[str, Any]]:
    """Exchange a tensor of `numel` elements several times with each method; bytes are per step and rank."""
    torch.set_num_threads(1)
    grad = torch.randn(numel, generator=torch.Generator().manual_seed(rank))
    records = []
    for method in methods:
        handle = manual(method)
        with handle:
            handle.step(grad, "w")
            dist.barrier()
            before, stats = _sent(), handle.stats()
            for _ in range(ROUNDS):
                handle.step(grad, "w")
            dist.barrier()
            measured = torch.tensor([float(_sent() - before)])
            after = handle.stats()
        dist.all_reduce(measured)
        records.append(
            {
                "method": method,
                "workers": world,
                "numel": numel,
                "payload_bytes": (after.payload_bytes - stats.payload_bytes) / ROUNDS,
                "leaving_bytes": (after.leaving_bytes - stats.leaving_bytes) / ROUNDS,
                "measured_bytes": measured.item() / world / ROUNDS,
            }
        )
        emit(("record", records[-1]))
    return records


def _sent() -> int:
    """Bytes sent by this host's interface, including protocol headers."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == virtual_hosts.INTERFACE:
            return int(counters.split()[8])
    raise GraceError(
        f"there is no interface {virtual_hosts.INTERFACE}: run this on a host made by `grace bench traffic`."
    )
