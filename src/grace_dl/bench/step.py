"""What a training step costs with and without compression, part by part.

Every candidate takes turns, step by step, with the same model under a hook that sends nothing, so that a busy moment
of the machine hits both: the figure is the ratio of their medians. Plain DDP and PyTorch's own hooks are candidates too;
where gradients are given and steps are short, plain DDP takes turns with every candidate as well.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ..dist.attach import Attached
from ..dist.optimizer import AttachedOptimizer
from ..helper import grace_from_params
from ..telemetry import Stats
from .workload import Batch, Workload

REFERENCE = "no communication"
BASELINES = ("ddp", "ddp fp16 hook")
WARM_UP = 2
"""Steps before measuring: DDP settles its buckets in them."""

SHORT = 1.0
"""Seconds a step of plain DDP may take for it to take turns with every candidate."""

THROUGH = ("ddp", "optimizer")
"""The two doors of `attach`: a DDP model, whose buckets gradients are copied into, or an optimizer, whose gradients stay
where backward put them."""


class Candidate(NamedTuple):
    """A way of exchanging gradients: settings for `grace_from_params`, None for the baselines above."""

    label: str
    params: dict[str, Any] | None = None
    through: str = THROUGH[0]


METHODS: list[tuple[str, dict[str, Any]]] = [
    ("none", {"compressor": "none"}),
    ("fp16", {"compressor": "fp16"}),
    ("int8", {"compressor": "int8"}),
    ("int4", {"compressor": "int4"}),
    ("efsignsgd", {"compressor": "efsignsgd"}),
    ("eden 1 bit", {"compressor": "eden"}),
    ("randomk 1 %", {"compressor": "randomk", "compress_ratio": 0.01}),
    ("topk 1 %", {"compressor": "topk", "compress_ratio": 0.01}),
    ("topk 0.1 %", {"compressor": "topk", "compress_ratio": 0.001}),
    ("dgc 0.1 %", {"compressor": "dgc", "compress_ratio": 0.001}),
    ("acpsgd rank 4", {"compressor": "acpsgd", "rank": 4}),
    ("powersgd rank 4", {"compressor": "powersgd", "rank": 4}),
]
"""The usual choice: about one method of each family."""


def _silent(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class Trainee:
    """A model under one way of exchanging gradients."""

    def __init__(self, workload: Workload, candidate: Candidate) -> None:
        label, params, through = candidate
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = workload.build()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        self.model: Any = model
        if through == "ddp":
            self.model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.handle: Attached | AttachedOptimizer | None = None
        if params is not None and through == "optimizer":
            grace = grace_from_params(params)
            self.handle = grace.attach(self.optimizer, named_parameters=model.named_parameters())
        elif params is not None:
            self.handle = grace_from_params(params).attach(self.model)
        elif label == "ddp fp16 hook":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            self.model.register_comm_hook(None, fp16_compress_hook)
        elif label == REFERENCE:
            self.model.register_comm_hook(None, _silent)
        # Gradients that are given, not computed, would be overwritten by the result where nobody copies them.
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
    emit: Callable[[Any], None],
    workload: Workload,
    candidates: list[Candidate],
    rounds: int,
    threads: int = 1,
    budget: float = 20.0,
) -> list[dict[str, Any]]:
    """Measure candidates (maybe as lists, from JSON) one after another on one rank.

    `emit` gets each record as it is made, and signs of life.
    """
    torch.set_num_threads(threads)
    batch = workload.batch(torch.Generator().manual_seed(rank))
    reference = Trainee(workload, Candidate(REFERENCE))

    def warm_up(trainee: Trainee, label: str) -> None:
        for count in range(WARM_UP):
            trainee.step(batch, keep=False)
            emit(("step", f"{label}, warm-up {count + 1} of {WARM_UP}"))

    emit(("step", REFERENCE))
    warm_up(reference, REFERENCE)
    beside = [reference]
    if workload.given:
        plain, start = Trainee(workload, Candidate(BASELINES[0])), time.perf_counter()
        warm_up(plain, BASELINES[0])
        if _agreed(int(time.perf_counter() - start < WARM_UP * SHORT)):
            beside.append(plain)
    records = []
    for candidate in (Candidate(*fields) for fields in candidates):
        label = candidate.label
        _reset_peak()
        trainee = Trainee(workload, candidate)
        start = time.perf_counter()
        warm_up(trainee, label)
        for other in beside:
            other.times.clear()
        turns = _agreed(max(3, min(rounds, int(WARM_UP * budget / (time.perf_counter() - start)))))
        before = trainee.stats()
        for count in range(turns):
            for each in (*beside, trainee):
                each.step(batch, keep=True)
            emit(("step", f"{label}, {count + 1} of {turns}"))
        records.append(_record(candidate, trainee, beside, before, turns))
        emit(("record", records[-1]))
        del trainee
        gc.collect()
    return records


def remote_worker(
    rank: int, world: int, emit: Callable[[Any], None], workload: dict[str, Any], *arguments: Any
) -> None:
    """`worker` for arguments that came as JSON."""
    worker(rank, world, emit, Workload(**workload), *arguments)


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
    """The largest resident size since `_reset_peak`; 0 where the system does not tell."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1024
    return 0
