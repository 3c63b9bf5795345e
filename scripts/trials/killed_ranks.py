"""One of three ranks is killed or stopped at a random moment: every other rank reports an error within the timeout.

The moment lies between the start of `attach` and some seconds of training, with one of five methods, through DDP or an
optimizer. A rank that aborts, hangs or ends without an error fails the run. A rank may take longer to exit than to report,
because Gloo waits for every collective in flight.
"""

from __future__ import annotations

import datetime
import random
import signal
import sys
import time

from trial import Job, describe, meet, run

WORLD = 3
TIMEOUT = 10.0
SLACK = 10.0
"""Seconds that a rank may take beyond the timeout to raise and print, on a busy machine."""
EXIT = 60.0
"""Seconds that a rank may take to exit."""
METHODS = ["topk:0.01", "int8", "powersgd:2", "threshold:0.01", "dgc:0.01"]
TARGETS = ["ddp", "optimizer"]
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


def train(target: str, method: str) -> None:
    """One rank of a job; trains until something fails."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import grace_dl as grace

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    grace.manual(method).step(torch.randn(256, 256), "w")  # imports everything that attach needs
    meet()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=TIMEOUT))
    net = DistributedDataParallel(model, bucket_cap_mb=0.3) if target == "ddp" else model
    dist.barrier()
    print("ready", flush=True)
    if target == "ddp":
        grace.attach(net, method)
    else:
        grace.attach(optimizer, method, named_parameters=model.named_parameters())
    while True:
        optimizer.zero_grad()
        net(torch.randn(4, 256)).square().mean().backward()
        optimizer.step()


def trial(number: int, chance: random.Random) -> tuple[str, str | None]:
    target, method = TARGETS[number % 2], METHODS[number // 2 % len(METHODS)]
    how = chance.choice(list(SIGNALS))
    victim = chance.randrange(WORLD)
    # Half of the moments fall into attach and the first steps.
    delay = chance.choice([chance.uniform(0, 0.3), chance.uniform(0, 4)])
    kind = f"{how} {target} {method}"
    others = [rank for rank in range(WORLD) if rank != victim]
    with Job([__file__, "--rank", target, method], WORLD) as job:
        if not all(job.wait_for(rank, "ready", limit=600) for rank in range(WORLD)):
            return kind, "ranks did not start\n" + describe(job.wait(0))
        time.sleep(delay)
        job.send(victim, SIGNALS[how])
        struck = job.seconds
        reported = all(job.wait_for(rank, "Error: ", struck + TIMEOUT + SLACK) for rank in others)
        seconds = job.seconds - struck
        ranks = job.wait(struck + TIMEOUT + EXIT, others)
    where = (
        f"rank {victim} {how} {delay:.2f} s after the start of attach; {seconds:.1f} s until all had reported"
    )
    print(where, flush=True)
    good = reported and all(rank.code == 1 for rank in ranks)
    return kind, None if good else describe(ranks)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        train(*sys.argv[2:])
    else:
        run(str(__doc__), trial, runs=200)
