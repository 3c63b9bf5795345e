"""20,000 steps of four methods on two ranks: memory, threads, descriptors and store keys do not grow.

The first quarter is not measured, and at least 2,500 steps: until then plain DDP takes memory too. GRACE_STEPS sets another number
of steps.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

from trial import Job, describe, run

WORLD = 2
STEPS = int(os.environ.get("GRACE_STEPS") or 20000)
WARM = max(STEPS // 4, 2500)
METHODS = ["topk:0.05", "threshold:0.001", "powersgd:2", "int8:memory=residual,communicator=alltoall"]
MOST = {"kilobytes": 1024, "threads": 0, "descriptors": 0, "store keys": 0}
"""The growth that is allowed: an allocator may still take some memory."""


def figures() -> dict[str, int]:
    import gc

    from torch.distributed import distributed_c10d as c10d

    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "kilobytes": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "store keys": c10d._get_default_store().num_keys(),
    }


def train(method: str) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import grace_dl as grace

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handle = grace.attach(model, method)
    torch.manual_seed(dist.get_rank())
    for step in range(STEPS + 1):
        if step in (WARM, STEPS):
            dist.barrier()
            print(json.dumps(figures()), flush=True)
            dist.barrier()
        optimizer.zero_grad()
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
    assert handle.stats().skipped == 0
    dist.destroy_process_group()


def trial(number: int, chance: random.Random) -> tuple[str, str | None]:
    method = METHODS[number % len(METHODS)]
    with Job([__file__, "--rank", method], WORLD) as job:
        ranks = job.wait(limit=30 + STEPS)
    if any(rank.code != 0 for rank in ranks):
        return method, describe(ranks)
    problems = []
    for rank, end in enumerate(ranks):
        early, late = (json.loads(line) for line in end.output.splitlines() if line.startswith("{"))
        grown = {what: late[what] - early[what] for what in MOST}
        print(f"{method}, rank {rank}: {grown}, from {early}", flush=True)
        problems += [
            f"rank {rank}: {what} grew by {grown[what]}" for what in MOST if grown[what] > MOST[what]
        ]
    return method, "\n".join(problems) or None


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        train(*sys.argv[2:])
    else:
        run(str(__doc__), trial, runs=len(METHODS))
