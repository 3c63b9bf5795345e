"""Many ranks on one machine, with a tiny model: replicas stay identical, and the start of a job is not slow.

Every run trains plain DDP or DDP with one method, and measures the time from `init_process_group` to the end of the first step
on the slowest rank. It prints the parts: connecting, DDP's own preparation, `attach` (which compares settings, opens channels
and compares layouts) and the step. A method may take at most twice as long as plain DDP. Connecting is the same for both and
takes seconds longer now and then, when a host name is looked up; both are counted with the shorter time of the two.
"""

from __future__ import annotations

import functools
import gc
import json
import random
import sys
import time

from trial import Job, describe, meet, run

METHODS = ["topk:0.01", "int8", "powersgd:2", "acpsgd:2", "threshold:0.01", "none"]
PLAIN = "plain DDP"
RESULT = "seconds: "
GOAL = 2.0
PARTS = ("connect", "wrap", "attach", "step")


def train(method: str) -> None:
    """One rank of a job."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import grace_dl as grace
    from grace_dl.transport.local import LocalTransport

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # Loads what is loaded late.
    grace.manual("int8" if method == PLAIN else method, transport=LocalTransport()).step(
        torch.randn(64, 64), "w"
    )
    meet()
    moments = [time.monotonic()]
    dist.init_process_group("gloo")
    moments.append(time.monotonic())
    net = DistributedDataParallel(model)
    moments.append(time.monotonic())
    if method != PLAIN:
        grace.attach(net, method)
    moments.append(time.monotonic())
    torch.manual_seed(dist.get_rank())
    for step in range(3):
        optimizer.zero_grad()
        net(torch.randn(2, 64)).square().mean().backward()
        optimizer.step()
        if step == 0:
            moments.append(time.monotonic())
    slowest = torch.tensor([later - moments[0] for later in moments[1:]], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    low, high = flat.clone(), flat.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    assert torch.equal(low, high), "replicas differ"
    if dist.get_rank() == 0:
        print(RESULT + json.dumps(slowest.tolist()), flush=True)
    # DDP's reducer must not be the last to refer to the group: torch then joins its threads with the GIL held, which can deadlock.
    del net
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def start(method: str, ranks: int) -> list[float] | str:
    """Seconds of each part, or what went wrong."""
    with Job([__file__, "--rank", method], ranks) as job:
        ended = job.wait(limit=600)
    if any(rank.code != 0 for rank in ended):
        return describe(ended)
    lines = ended[0].output.splitlines()
    ends = json.loads(next(line.removeprefix(RESULT) for line in lines if line.startswith(RESULT)))
    parts = [end - begin for begin, end in zip([0.0, *ends], ends)]
    print(
        f"{method}: {', '.join(f'{name} {seconds:.3f} s' for name, seconds in zip(PARTS, parts))}", flush=True
    )
    return parts


plain = functools.cache(functools.partial(start, PLAIN))


def trial(number: int, chance: random.Random, ranks: int) -> tuple[str, str | None]:
    method = METHODS[number % len(METHODS)]
    kind = f"{ranks} ranks {method}"
    for parts in (reference := plain(ranks), compressed := start(method, ranks)):
        if isinstance(parts, str):
            return kind, parts
    assert isinstance(reference, list) and isinstance(compressed, list)
    connect = min(reference[0], compressed[0])
    ratio = (connect + sum(compressed[1:])) / (connect + sum(reference[1:]))
    print(f"{kind}: {ratio:.2f} times plain DDP", flush=True)
    return kind, None if ratio <= GOAL else f"ratio {ratio:.2f}, at most {GOAL:g} is wanted"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        train(*sys.argv[2:])
    else:
        run(str(__doc__), trial, runs=len(METHODS), options={"ranks": 64})
