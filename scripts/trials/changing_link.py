"""`auto` on a link that drops from 10 Gbit/s to 100 Mbit/s and recovers: it follows within 100 steps, and replicas stay identical.

Two virtual hosts train the transformer of `grace bench link`. In each phase `auto` takes 100 steps to follow; then its steps are
compared, in turns, with plain DDP and with each method it may choose. Needs root (network namespaces and tc) and a quiet machine:
the figures at the end are step times.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from grace_dl.algebra.auto import Auto
from grace_dl.algebra.text import parse
from grace_dl.bench.selection import DDP
from grace_dl.bench.step_worker import Candidate, Trainee
from grace_dl.bench.virtual_hosts import Hosts
from grace_dl.bench.workload import Workload
from grace_dl.tuning import timing
from grace_dl.workers import run_workers

FOLLOW = 100
"""Steps in which a change must have been followed."""
CALM = 3
"""Steps that each of the others may take to get used to the link."""


class Stopwatch:
    """The clock of `auto`, which stands still while others train: their steps are not a part of its own."""

    def __init__(self) -> None:
        self._real, self._paused = timing.now, 0.0

    def __call__(self) -> float:
        return self._real() - self._paused

    def pause(self, work: Callable[[], None]) -> None:
        start = self._real()
        work()
        self._paused += self._real() - start


def work(
    rank: int, world: int, emit: Callable[[Any], None], model: str, method: str, rates: list[str], turns: int
) -> bool:
    """Train with `auto`; rank 0 asks for each rate, and tells what was chosen and how fast that is."""
    torch.set_num_threads(1)
    workload = Workload(model)
    batch = workload.batch(torch.Generator().manual_seed(rank))
    watch = Stopwatch()
    timing.now = watch
    chosen = parse(method)
    assert isinstance(chosen, Auto)
    trainee = Trainee(workload, Candidate(method))
    others = {text: Trainee(workload, Candidate(text)) for text in (DDP, *map(str, chosen.allow))}
    for rate in rates:
        emit(("rate", rate))
        time.sleep(0.5)  # until the links have it
        dist.barrier()
        changed = 0
        before = trainee.stats().choice
        for step in range(FOLLOW):
            trainee.step(batch, keep=False)
            now = trainee.stats().choice
            changed = step + 1 if now != before else changed
            before = now
            emit(("step", f"{rate}: step {step + 1}, {now}"))
        assert trainee.handle is not None
        emit(("phase", (rate, before, changed, trainee.handle.settled, trainee.handle.explain())))
        for text, other in others.items():
            compared = (trainee, other)
            for one in compared:
                one.times.clear()
            for turn in range(CALM + turns):
                keep = turn >= CALM
                trainee.step(batch, keep)
                watch.pause(partial(other.step, batch, keep))
            mine, theirs = (statistics.median(sum(t) for t in one.times) for one in compared)
            emit(("compared", (rate, text, mine, theirs)))
    flat = torch.cat([parameter.detach().flatten() for parameter in trainee.model.parameters()])
    low, high = flat.clone(), flat.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return torch.equal(low, high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--model", default="transformer", help="a model of `grace bench link`")
    parser.add_argument("--method", default="auto", help="auto, or with methods: 'auto(int8; topk:0.01)'")
    parser.add_argument("--rates", default="10gbit,100mbit,10gbit", help="link rates, one after another")
    parser.add_argument("--workers", type=int, default=2, help="hosts (default 2)")
    parser.add_argument("--turns", type=int, default=7, help="steps of each comparison (default 7)")
    parser.add_argument("--goal", type=float, default=1.05, help="auto ÷ the best other (default 1.05)")
    given = parser.parse_args()
    rates = given.rates.split(",")
    hosts = Hosts(given.workers, rates[0])
    best: list[tuple[str, float]] = []  # for each phase: its rate, and auto ÷ the best other
    problems: list[str] = []

    def on_event(rank: int, event: tuple[str, Any]) -> None:
        if rank != 0:
            return
        kind, value = event
        if kind == "rate":
            hosts.set_rate(value)
            best.append((value, 0.0))
        elif kind == "phase":
            rate, choice, changed, settled, explained = value
            print(f"{rate}: {choice}, last changed at step {changed}\n{explained}", flush=True)
            if not settled:
                problems.append(f"{rate}: still choosing after {FOLLOW} steps")
        elif kind == "compared":
            rate, text, mine, theirs = value
            print(
                f"{rate}: auto {1e3 * mine:.0f} ms, {text} {1e3 * theirs:.0f} ms: {mine / theirs:.2f}",
                flush=True,
            )
            best[-1] = rate, max(best[-1][1], mine / theirs)

    with hosts as place:
        identical = run_workers(
            *(work, given.workers, given.model, given.method, rates, given.turns),
            on_event=on_event,
            silence=600.0,
            place=place,
        )
    if not all(identical):
        problems.append("replicas differ")
    for rate, ratio in best:
        print(f"{rate}: {ratio:.2f} × the best other")
        if ratio > given.goal:
            problems.append(f"{rate}: {ratio:.2f} × the best other, the goal is {given.goal:g}")
    print("passed" if not problems else "FAILED: " + "; ".join(problems))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
