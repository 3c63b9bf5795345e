"""Measures a training step and its parts, with and without compression: the code that every worker runs.

Every candidate alternates, step by step, with the silent step: the same model under a DDP hook that sends nothing.
Other load on the machine then affects both, and the result is the ratio of their medians. Local steps alternate by whole
periods, so that an exchange with a delay travels during steps of its own, and the time of a step is the mean over a period. PyTorch's own baselines are candidates too. For models without computation, whose steps are short, every candidate also alternates with plain DDP.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from ..algebra.local_rule import LocalRule
from ..algebra.text import parse_rule
from ..handle import Handle
from ..integrations.attach import attach
from ..integrations.local_steps import LocalSteps
from ..plan.probe import probe
from ..telemetry import Stats
from ..workers import Emit
from .selection import BASELINES, DDP, DDP_FP16, FSDP, HSDP, LOCAL, OPTIMIZER
from .workload import Batch, Workload

SILENT = "no communication"
WARM_UP = 2
"""Warm-up steps before measuring, in which DDP rebuilds its buckets."""
SETTLING = 120
"""More of them, at most, until the method `auto` has chosen."""

SHORT = 1.0
"""Plain DDP alternates with every candidate if its step takes at most this many seconds."""

THROUGH = ("ddp", OPTIMIZER, FSDP, HSDP)
"""What a method is attached to: a DDP model, which copies gradients into its buckets; an optimizer, whose gradients stay
where the backward pass put them; a model sharded by FSDP2, whose gradients are reduced to shards; or replicas of a model
sharded over pairs of workers."""


class Candidate(NamedTuple):
    """A way to exchange gradients: a method or baseline by its text, and what it is attached to."""

    method: str
    through: str = THROUGH[0]


def _silent(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _shard(model: nn.Module, replicas: bool, keep: bool) -> None:
    """Shard every layer of a model by itself, and what remains with the whole; with replicas, over pairs of workers.

    `keep`: whether layers stay whole after the forward pass.
    """
    from torch.distributed.device_mesh import init_device_mesh

    names = ("replicate", "shard")
    mesh = (
        init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=names) if replicas else None
    )

    lists = [module for module in model.modules() if isinstance(module, (nn.ModuleList, nn.Sequential))]
    layers = [layer for each in lists for layer in each if any(True for _ in layer.parameters())]
    # The innermost first; a layer within another belongs to it.
    inside = {inner for layer in layers for inner in layer.modules() if inner is not layer}
    for module in (*(layer for layer in layers if layer not in inside), model):
        sharded = fully_shard(module, mesh=mesh, reshard_after_forward=False if keep else None)
        sharded.set_force_sum_reduction_for_comms(True)  # for plain FSDP2 on Gloo, which has no average


class Trainee:
    """A model under one way of exchanging gradients."""

    def __init__(self, workload: Workload, candidate: Candidate) -> None:
        method, through = candidate
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = workload.build()
        if through in (FSDP, HSDP):
            _shard(model, replicas=through == HSDP, keep=workload.accumulate > 1)
        self._passes = workload.accumulate
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        self.model: Any = model
        if through == "ddp":
            self.model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.handle: Handle | None = None
        self.period = 1
        """Steps from one exchange of a parameter to the next."""
        self.warm_up = WARM_UP
        if through == LOCAL:
            rule = parse_rule(method)
            assert isinstance(rule, LocalRule)
            self.handle = LocalSteps.from_rule(model, self.optimizer, rule)
            self.period = rule.every
            # Periods are measured from the step at which a delayed result is applied: none is in flight between them.
            self.warm_up = max(WARM_UP, rule.delay)
        elif method == FSDP:
            pass
        elif method == SILENT:
            self.model.register_comm_hook(None, _silent)
        elif method == DDP_FP16:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            self.model.register_comm_hook(None, fp16_compress_hook)
        elif method not in BASELINES and through == OPTIMIZER:
            self.handle = attach(self.optimizer, method, named_parameters=model.named_parameters())
        elif method not in BASELINES and through == HSDP:
            self.handle = attach(self.model, "none", replicas=method)
        elif method not in BASELINES:
            self.handle = attach(self.model, method)
        # The result overwrites gradients that are not copied, and precomputed gradients are needed again.
        self._own = workload.given and through == OPTIMIZER
        self.times: list[tuple[float, float, float]] = []
        self.settled_after = 0

    def unsettled(self) -> bool:
        """Whether the method `auto` is still choosing; the same on all ranks."""
        return self.handle is not None and not self.handle.settled

    def step(self, batch: Batch, keep: bool) -> None:
        self.optimizer.zero_grad()
        if self._own:
            batch = tuple(grad.clone() for grad in batch)
        if (
            self.period == 1
        ):  # local steps meet at exchanges only; waiting for all would give an exchange more time
            dist.barrier()
        forward = backward = 0.0
        end = time.perf_counter()
        for number in range(1, self._passes + 1):
            start = end
            with self._between_passes() if number < self._passes else nullcontext():
                loss = self.model(*batch)
                middle = time.perf_counter()
                loss.backward()
            end = time.perf_counter()
            forward, backward = forward + middle - start, backward + end - middle
        self.optimizer.step()
        if isinstance(self.handle, LocalSteps):
            self.handle.step()
        if keep:
            self.times.append((forward, backward, time.perf_counter() - end))

    @contextmanager
    def _between_passes(self) -> Iterator[None]:
        """DDP exchanges gradients in the last pass; FSDP2 reduces them in every one, but gathers parameters once."""
        if isinstance(self.model, FSDPModule):
            self.model.set_reshard_after_backward(False)
            yield
            self.model.set_reshard_after_backward(True)
        elif isinstance(self.model, DistributedDataParallel):
            with self.model.no_sync():
                yield
        else:
            yield

    @property
    def seconds(self) -> float:
        """The time of a step: the median over periods of the mean within one."""
        times = [sum(parts) for parts in self.times]
        periods = [times[first : first + self.period] for first in range(0, len(times), self.period)]
        return statistics.median(statistics.fmean(period) for period in periods)

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
    probing: bool = False,
    budget: float = 20.0,
) -> list[dict[str, Any]]:
    """Measure candidates one after another on one rank; emits ("step", text) and ("record", record) events.

    `probing`: measure the link as well; every record has what was found.
    """
    torch.set_num_threads(threads)
    facts: dict[str, Any] = {}
    if probing:
        emit(("step", "measuring the link"))
        link = probe()
        facts["link"] = {"bits": link.bits, "latency": link.latency}
    batch = workload.batch(torch.Generator().manual_seed(rank))

    def warmed_up(candidate: Candidate) -> tuple[Trainee, float]:
        """A trainee after its warm-up steps, and the duration of one of them."""
        trainee = Trainee(workload, candidate)
        while trainee.unsettled() and trainee.settled_after < SETTLING:
            trainee.step(batch, keep=False)
            trainee.settled_after += 1
            emit(("step", f"{candidate.method}, {trainee.settled_after} steps to choose"))
        start = time.perf_counter()
        for count in range(trainee.warm_up):
            trainee.step(batch, keep=False)
            emit(("step", f"{candidate.method}, warm-up {count + 1} of {trainee.warm_up}"))
        seconds = (time.perf_counter() - start) / trainee.warm_up
        if isinstance(trainee.handle, LocalSteps):
            trainee.handle.synchronize()  # buffers and channels of the first exchange
        return trainee, seconds

    emit(("step", SILENT))
    beside = [warmed_up(Candidate(SILENT))[0]]
    if workload.given:
        plain, seconds = warmed_up(Candidate(DDP))
        if agreed(int(seconds < SHORT)):
            beside.append(plain)
    records = []
    for candidate in candidates:
        _reset_peak()
        trainee, seconds = warmed_up(candidate)
        for other in beside:
            other.times.clear()
        turns = agreed(_turns(trainee.period, rounds, budget / seconds))
        before = trainee.stats()
        for first in range(0, turns, trainee.period):
            for each in (*beside, trainee):
                dist.barrier()
                for count in range(first, first + trainee.period):
                    each.step(batch, keep=True)
                    emit(("step", f"{candidate.method}, {count + 1} of {turns}"))
        records.append({**_record(candidate, trainee, beside, before, turns), **facts})
        emit(("record", records[-1]))
        del trainee
        gc.collect()
    return records


def _turns(period: int, rounds: int, affordable: float) -> int:
    """How many steps to measure: as many as the budget allows, and whole periods."""
    if period == 1:
        return max(3, min(rounds, int(affordable)))
    return period * max(1, min(rounds, int(affordable)) // period)


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


def agreed(number: int) -> int:
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
    seconds, silent, *plain = (one.seconds for one in (trainee, *beside))
    forward, backward, update = (statistics.fmean(part) for part in zip(*trainee.times))
    after = trainee.stats()
    parts = {name: (after.seconds[name] - before.seconds[name]) / rounds for name in after.seconds}
    return {
        **candidate._asdict(),
        **({"choice": after.choice, "settled_after": trainee.settled_after} if after.choice else {}),
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
