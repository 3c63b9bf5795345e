"""`grace bench traffic`: bytes that leave a rank, from its host's network interface, compared with those reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..console import output
from ..errors import ConfigError, GraceError
from ..handle import ManualHandle
from ..integrations.attach import manual
from ..pipeline.bucket import packed
from ..plan.profile import Parameter, Profile
from ..workers import Emit, run_workers
from . import tables, virtual_hosts
from .models import gpt2_shapes, resnet50_shapes
from .results import Results, check_elements

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


MODELS: dict[str, Callable[[], list[tuple[int, ...]]]] = {"resnet50": resnet50_shapes, "gpt2": gpt2_shapes}
"""Models whose gradients can be exchanged in place of one tensor."""


def measure_traffic(
    methods: Sequence[str],
    out: Path,
    *,
    workers: Sequence[int],
    numel: int,
    model: str | None = None,
    per_host: int = 1,
    fresh: bool = False,
) -> None:
    """Exchange a tensor of `numel` elements, or the gradients of a model, with each method, for every number of workers.

    `per_host` workers are on each host.
    """
    if numel < 1 or min(workers) < 1:
        raise ConfigError("--numel and --workers must be positive.")
    check_elements("--numel", numel, copies=2 * max(workers))
    virtual_hosts.check_workers(workers, per_host)
    virtual_hosts.check_able("Without them no interface counts the bytes")
    console = output()
    shapes = [(numel,)] if model is None else MODELS[model]()
    settings: dict[str, Any] = {"numel": numel} if model is None else {"model": model}
    if per_host != 1:
        settings["per_host"] = per_host
    results = Results(out, "traffic", settings, fresh)
    for count in workers:
        missing = [method for method in methods if f"{count}/{method}" not in results]
        if not missing:
            continue
        hosts = count // per_host
        with virtual_hosts.Hosts(hosts, "unlimited", per_host) as place, console.status(f"{hosts} hosts"):
            for record in run_workers(worker, count, missing, shapes, place=place)[0]:
                results.add(f"{count}/{record['method']}", {**record, "hosts": hosts})
    console.print(tables.heading(results.header))
    console.print(tables.traffic_table(list(results.records.values())))
    console.print(f"Results: {out.resolve()}", soft_wrap=True)


def worker(
    rank: int, world: int, emit: Emit, methods: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> list[dict[str, Any]]:
    """Exchange gradients of these shapes several times with each method; bytes are per step and rank.

    Ranks of one host read the same interface, so what was measured is per step and host.
    """
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(rank)
    made = [Parameter(f"p{n}", shape, torch.float32, 0.0) for n, shape in enumerate(shapes)]
    layout = Profile("traffic", tuple(made[::-1]), 0.0, 0.0, 0.0).buckets()
    grads = [[torch.randn(parameter.shape, generator=generator) for parameter in bucket] for bucket in layout]
    numel = sum(grad.numel() for bucket in grads for grad in bucket)

    def step(handle: ManualHandle) -> None:
        driver = handle.session.driver()
        for place, (parameters, values) in enumerate(zip(layout, grads)):
            driver.launch(packed(place, [parameter.name for parameter in parameters], values))
        driver.finish()

    records = []
    for method in methods:
        handle = manual(method)
        with handle:
            step(handle)
            dist.barrier()
            before, stats = _sent(), handle.stats()
            for _ in range(ROUNDS):
                step(handle)
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
