"""Measures a training step and its parts, with and without compression: the code that every worker runs.

Every candidate alternates, step by step, with the silent step: the same model under a DDP hook that sends nothing.
Other load on the machine then affects both, and the result is the ratio of their medians. PyTorch's own baselines are
candidates too. For models without computation, whose steps are short, every candidate also alternates with plain DDP.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ..handle import Handle
from ..integrations.attach import attach
from ..telemetry import Stats
from ..workers import Emit
from .selection import BASELINES, DDP, DDP_FP16
from .workload import Batch, Workload

SILENT = "no communication"
WARM_UP = 2
"""Warm-up steps before measuring, in which DDP rebuilds its buckets."""

SHORT = 1.0
"""Plain DDP alternates with every candidate if its step takes at most this many seconds."""

THROUGH = ("ddp", "optimizer")
"""What a method is attached to: a DDP model, which copies gradients into its buckets, or an optimizer, whose gradients
stay where the backward pass put them."""


class Candidate(NamedTuple):
    """A way to exchange gradients: a method or baseline by its text, and what it is attached to."""

    method: str
    through: str = THROUGH[0]


def _silent(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class Trainee:
    """A model under one way of exchanging gradients."""

    def __init__(self, workload: Workload, candidate: Candidate) -> None:
        method, through = candidate
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = workload.build()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        self.model: Any = model
        if through == "ddp":
            self.model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.handle: Handle | None = None
        if method == SILENT:
            self.model.register_comm_hook(None, _silent)
        elif method == DDP_FP16:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            self.model.register_comm_hook(None, fp16_compress_hook)
        elif method not in BASELINES and through == "optimizer":
            self.handle = attach(self.optimizer, method, named_parameters=model.named_parameters())
        elif method not in BASELINES:
            self.handle = attach(self.model, method)
        # The result overwrites gradients that are not copied, and precomputed gradients are needed again.
        self._own = workload.given and through == "optimizer"
        self.times: list[tuple[float, float, float]] = []

    def step(self, batch: Batch, keep: bool) -> None:
        self.optimizer.zero_grad()
        if self._own:
            batch = tuple(grad.clone() for grad in batch)
        dist.barrier()
        start = time.perf_counter()
        loss = self.model(*batch)
        middle = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        self.optimizer.step()
        if keep:
            self.times.append((middle - start, end - middle, time.perf_counter() - end))

    def stats(self) -> Stats:
        return self.handle.stats() if self.handle is not None else Stats()


def worker(
    rank: int,
    world: int,
    emit: Emit,
    workload: Workload,
    candidates: list[Candidate],
    rounds: int,
    threads: int = 1,
    budget: float = 20.0,
) -> list[dict[str, Any]]:
    """Measure candidates one after another on one rank; emits ("step", text) and ("record", record) events."""
    torch.set_num_threads(threads)
    batch = workload.batch(torch.Generator().manual_seed(rank))

    def warmed_up(candidate: Candidate) -> tuple[Trainee, float]:
        """A trainee after its warm-up steps, and the duration of one of them."""
        trainee, start = Trainee(workload, candidate), time.perf_counter()
        for count in range(WARM_UP):
            trainee.step(batch, keep=False)
            emit(("step", f"{candidate.method}, warm-up {count + 1} of {WARM_UP}"))
        return trainee, (time.perf_counter() - start) / WARM_UP

    emit(("step", SILENT))
    beside = [warmed_up(Candidate(SILENT))[0]]
    if workload.given:
        plain, seconds = warmed_up(Candidate(DDP))
        if _agreed(int(seconds < SHORT)):
            beside.append(plain)
    records = []
    for candidate in candidates:
        _reset_peak()
        trainee, seconds = warmed_up(candidate)
        for other in beside:
            other.times.clear()
        turns = _agreed(max(3, min(rounds, int(budget / seconds))))
        before = trainee.stats()
        for count in range(turns):
            for each in (*beside, trainee):
                each.step(batch, keep=True)
            emit(("step", f"{candidate.method}, {count + 1} of {turns}"))
        records.append(_record(candidate, trainee, beside, before, turns))
        emit(("record", records[-1]))
        del trainee
        gc.collect()
    return records


def remote_worker(
    rank: int,
    world: int,
    emit: Emit,
    workload: dict[str, Any],
    candidates: list[list[str]],
    *arguments: Any,
) -> None:
    """`worker` with arguments from JSON."""
    worker(rank, world, emit, Workload(**workload), [Candidate(*fields) for fields in candidates], *arguments)


def _agreed(number: int) -> int:
    """Rank 0's number, on every rank."""
    box = torch.tensor([number])
    dist.broadcast(box, 0)
    return int(box.item())


def _record(
    candidate: Candidate,
    trainee: Trainee,
    beside: Sequence[Trainee],
    before: Stats,
    rounds: int,
) -> dict[str, Any]:
    seconds, silent, *plain = (statistics.median(sum(t) for t in one.times) for one in (trainee, *beside))
    forward, backward, update = (statistics.fmean(part) for part in zip(*trainee.times))
    after = trainee.stats()
    parts = {name: (after.seconds[name] - before.seconds[name]) / rounds for name in after.seconds}
    return {
        **candidate._asdict(),
        "rounds": rounds,
        "seconds": seconds,
        "reference_seconds": silent,
        "over_reference": seconds / silent,
        **({"over_ddp": seconds / plain[0]} if plain else {}),
        "parts": {"forward": forward, "backward": backward - sum(parts.values()), **parts, "update": update},
        "payload_bytes": (after.payload_bytes - before.payload_bytes) / rounds,
        "leaving_bytes": (after.leaving_bytes - before.leaving_bytes) / rounds,
        "collectives": (after.collectives - before.collectives) / rounds,
        "peak_bytes": _peak(),
    }


def _reset_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """The largest resident size since `_reset_peak`; 0 if the system does not report it."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1024
    return 0
