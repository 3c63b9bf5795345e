"""Many ranks on one machine, with a tiny model: replicas stay identical, and the first step is not slow.

Every run trains plain DDP and then DDP with one method, and compares the time of the first step on the slowest rank; for
the method it includes `attach`, which compares settings, opens channels and compares layouts.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import time
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from trial import run

import grace_dl as grace
from grace_dl.transport.local import LocalTransport

METHODS = ["topk:0.01", "int8", "powersgd:2", "acpsgd:2", "threshold:0.01", "none"]
GOAL = 2.0


def first_step(method: str | None) -> tuple[float, bool]:
    """Seconds of the first step on the slowest rank, and whether replicas are identical after a few more."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(2, 64)).square().mean().backward()
        optimizer.step()

    dist.barrier()
    started = time.monotonic()
    if method is not None:
        grace.attach(model, method)
    step()
    slowest = torch.tensor(time.monotonic() - started)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    for _ in range(2):
        step()
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    low, high = flat.clone(), flat.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return float(slowest), torch.equal(low, high)


def work(rank: int, world: int, port: int, method: str, end: Connection) -> None:
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    # Connect, and load what is loaded late.
    grace.manual(method, transport=LocalTransport()).step(torch.randn(64, 64), "w")
    first_step(None)
    plain, _ = first_step(None)
    compressed, identical = first_step(method)
    if rank == 0:
        end.send((plain, compressed, identical))
    dist.barrier()
    dist.destroy_process_group()


def trial(number: int, chance: random.Random, ranks: int) -> tuple[str, str | None]:
    method = METHODS[number % len(METHODS)]
    kind = f"{ranks} ranks {method}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")  # torch is imported once
    ours, theirs = context.Pipe(duplex=False)
    processes = [
        context.Process(target=work, args=(rank, ranks, port, method, theirs), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        if not ours.poll(600):
            return kind, "no result in 600 s"
        plain, compressed, identical = ours.recv()
        for process in processes:
            process.join(60)
        codes = [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
    ratio = compressed / plain
    print(f"first step: plain {plain:.3f} s, {method} {compressed:.3f} s, ratio {ratio:.2f}", flush=True)
    if not identical:
        return kind, "replicas differ"
    if any(codes):
        return kind, f"exit codes {codes}"
    return kind, None if ratio <= GOAL else f"ratio {ratio:.2f}, at most {GOAL:g} is wanted"


if __name__ == "__main__":
    run(str(__doc__), trial, runs=len(METHODS), options={"ranks": 64})
