"""Training with a loss scale: in one of twenty steps the gradient of a random rank overflows; every rank skips the step.

1,000 steps a run. Parameters must be the same bits on all ranks, and residuals finite.
"""

from __future__ import annotations

import random
import sys

from trial import Job, describe, run

WORLD = 2
STEPS = 1000
METHODS = ["none", "fp16", "topk:0.05", "dgc:0.05", "onebit", "int4", "powersgd:rank=2", "acpsgd:rank=2"]


def train(method: str, seed: str) -> None:
    """One rank of a job."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import grace_dl as grace

    dist.init_process_group("gloo")
    rank, chance = dist.get_rank(), random.Random(seed)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.Tanh(), torch.nn.Linear(64, 24))
    net = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=50)
    handle = grace.attach(net, grace.parse(method), scaler=scaler)
    torch.manual_seed(rank)
    overflows = 0
    for _ in range(STEPS):
        bad = chance.random() < 0.05
        who = chance.randrange(WORLD)
        optimizer.zero_grad()
        loss = net(torch.randn(4, 48)).square().mean()
        # Infinity in the gradient of one rank, as from a loss scale that is too large.
        scaler.scale(loss * float("inf") if bad and rank == who else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        overflows += bad
    flat = torch.cat([p.detach().view(-1) for p in model.parameters()])
    copies = [torch.empty_like(flat) for _ in range(WORLD)]
    dist.all_gather(copies, flat)
    assert flat.isfinite().all()
    assert all(torch.equal(copy, flat) for copy in copies), "replicas differ"
    assert handle.stats().skipped == overflows, f"{handle.stats().skipped} skipped, {overflows} overflows"
    for memory in handle.session.memories().values():
        for slots in memory.state.values():
            assert all(bool(tensor.isfinite().all()) for tensor in slots.values())
    dist.destroy_process_group()
    print(f"held, {overflows} overflows", flush=True)


def trial(number: int, chance: random.Random) -> tuple[str, str | None]:
    method = METHODS[number % len(METHODS)]
    with Job([__file__, "--rank", method, str(chance.random())], WORLD) as job:
        ranks = job.wait(limit=1800)
    good = all(rank.code == 0 and "held" in rank.output for rank in ranks)
    return method, None if good else describe(ranks)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        train(*sys.argv[2:])
    else:
        run(str(__doc__), trial, runs=len(METHODS))
