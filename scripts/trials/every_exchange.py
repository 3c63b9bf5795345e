"""Every exchange on many real ranks: results are identical on all ranks, and those of the simulated ranks that tests check.

A run takes one method through every communicator that carries it, for three steps; so does the run of `hierarchical` with several
outer methods, among nodes of `--node` ranks. Where the engine sums in an order of its own, rounding may differ from the simulation;
everywhere else results are equal bit by bit. On simulated ranks, tests show that what is sent and what is owed add up to the
gradients (`tests/contract`).
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from typing import Any

from trial import Job, describe, meet, run

from grace_dl import catalog

STEPS = 3
SHAPE = (64, 72)
RIGHT = ": right"
ROUNDING = {"bf16": 5e-2, "fp16": 1e-2}
"""How far a sum in another order may be off, relative to the largest value; `FLOAT32` for all others."""
FLOAT32 = 1e-4
HIERARCHICAL = "hierarchical"
OUTER = ["none", "int4", "topk:0.3", "powersgd:2", "acpsgd:2", "efsignsgd"]
NAMES = [*catalog.builtin_names(), HIERARCHICAL]


def values(name: str) -> list[Any]:
    """The method through each of its communicators."""
    import grace_dl as grace

    if name == HIERARCHICAL:
        return [grace.parse(f"hierarchical(outer={outer})") for outer in OUTER]
    info = catalog.methods()[name]
    ratio = ["ratio=0.3"] if any(parameter.name == "ratio" for parameter in info.parameters) else []
    ways = catalog.communicators_of(info, catalog.MEMORIES[info.memories[0]])
    return [grace.parse(f"{name}:{','.join([*ratio, f'communicator={way}'])}") for way in ways]


def summed_by_engine(method: Any) -> bool:
    """Whether ranks' values go through an all-reduce, whose order of summands is the engine's."""
    return "hierarchical" in str(method) or "communicator=allreduce" in str(method)


def exchange(name: str) -> None:
    """One rank of a job; rank 0 also computes what is expected."""
    import torch
    import torch.distributed as dist

    import grace_dl as grace

    meet()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()

    def gradient(of: int, step: int) -> torch.Tensor:
        return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1000 * step + of))

    def steps(method: Any, of: int, transport: Any = None) -> torch.Tensor:
        with grace.manual(method, transport=transport) as handle:
            return torch.stack([handle.step(gradient(of, step), "weight") for step in range(STEPS)])

    for method in values(name):
        found = steps(method, rank).view(torch.int32)
        low, high = found.clone(), found.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        assert torch.equal(low, high), f"{method}: ranks differ"
        if rank == 0:  # the others wait in the next exchange
            world = grace.simulated(size, timeout=600, ranks_per_node=int(os.environ["LOCAL_WORLD_SIZE"]))
            expected = world.run(lambda transport: steps(method, transport.rank, transport))[0]  # noqa: B023
            tolerance = ROUNDING.get(name, FLOAT32) if summed_by_engine(method) else 0.0
            off = (found.view(torch.float32) - expected).abs().max().item() / expected.abs().max().item()
            good = off <= tolerance  # an error here would leave the others waiting in the next `manual`
            print(
                f"{method}{RIGHT}" if good else f"{method}: off by {off:.1e} of the largest value", flush=True
            )
    dist.barrier()
    dist.destroy_process_group()


def trial(number: int, chance: random.Random, ranks: int, node: int) -> tuple[str, str | None]:
    name = NAMES[number % len(NAMES)]
    with Job([__file__, "--rank", name], ranks, {"LOCAL_WORLD_SIZE": str(node)}) as job:
        ended = job.wait(limit=3600)
    right = [line for line in ended[0].output.splitlines() if line.endswith(RIGHT)]
    print("\n".join(right), flush=True)
    good = all(rank.code == 0 for rank in ended) and len(right) == len(values(name))
    return f"{ranks} ranks {name}", None if good else describe(ended)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # pairs that warn are valid pairs
    if sys.argv[1:2] == ["--rank"]:
        exchange(*sys.argv[2:])
    else:
        run(str(__doc__), trial, runs=len(NAMES), options={"ranks": 64, "node": 8})
