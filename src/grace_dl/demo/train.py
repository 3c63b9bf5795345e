"""The demo's training loop: what every worker runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..bench.selection import DDP
from ..data import Images, load_images
from ..handle import Handle
from ..integrations.attach import attach
from ..workers import Emit
from .plan import Point, Result, Run, Settings

WARMUP = 5
"""Warm-up steps excluded from the median: buckets are rebuilt and buffers allocated."""


def work(rank: int, world: int, emit: Emit, settings: Settings, runs: Sequence[Run]) -> list[Result]:
    """Train all runs; emits ("start", run), ("step", run, step, of, accuracy) and ("end", run, result) events."""
    images = load_images(settings.data)
    results = []
    for place, run in enumerate(runs):
        emit(("start", place))
        results.append(_train(rank, world, emit, settings, place, run, images))
        emit(("end", place, results[-1]))
    return results


def network(images: Images) -> nn.Module:
    """A small convolutional network for images of at least 8 × 8 pixels; most parameters are in one matrix."""
    channels, side = images.train_x.shape[1], images.train_x.shape[-1]
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (side // 4) ** 2, 256),
        nn.ReLU(),
        nn.Linear(256, images.classes),
    )


def _train(
    rank: int, world: int, emit: Emit, settings: Settings, place: int, run: Run, images: Images
) -> Result:
    torch.manual_seed(0)  # every run starts from the same weights
    model = DistributedDataParallel(network(images))
    handle = None if run.method == DDP else attach(model, run.method)
    optimizer = torch.optim.SGD(model.parameters(), lr=run.rate, momentum=run.momentum)
    lossf = nn.CrossEntropyLoss()
    parameters = sum(p.numel() for p in model.parameters())

    per_epoch = len(images.train_x) // (settings.batch * world)
    steps = max(1, round(settings.epochs * per_epoch))
    evaluate_every = max(1, steps // settings.evaluations)
    times: list[float] = []
    points: list[Point] = []
    for step, (x, y) in enumerate(_batches(images, settings.batch, rank, world, steps), start=1):
        _decay(optimizer, run.rate, step / steps)
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = lossf(model(x), y)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
        if step % evaluate_every == 0 or step == steps:
            accuracy = _accuracy(model.module, images, rank, world)
            sent = _sent(handle, 4 * parameters, step, world)[0] * step / 1e6
            points.append(Point(step, sum(times), sent, accuracy))
        emit(("step", place, step, steps, points[-1].accuracy if points else None))
    leaving, payload = _sent(handle, 4 * parameters, steps, world)
    return Result(
        method=run.method,
        steps=steps,
        parameters=parameters,
        accuracy=points[-1].accuracy,
        sent_per_step=leaving,
        payload_per_step=payload,
        dense_per_step=4.0 * parameters,
        step_ms=1000 * statistics.median(times[WARMUP:] or times),
        seconds=sum(times),
        points=points,
    )


def _batches(
    images: Images, batch: int, rank: int, world: int, steps: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless epochs in the same order on all ranks; every rank takes its own part of each global batch."""
    order_of = torch.Generator().manual_seed(1)
    mean, scale = _normalisation(images)
    done = 0
    while True:
        order = torch.randperm(len(images.train_x), generator=order_of)
        for start in range(0, len(order) - batch * world + 1, batch * world):
            if done == steps:
                return
            mine = order[start + rank * batch : start + (rank + 1) * batch]
            yield (images.train_x[mine].float() - mean) / scale, images.train_y[mine]
            done += 1


def _normalisation(images: Images) -> tuple[float, float]:
    sample = images.train_x[:5000].float()
    return float(sample.mean()), float(sample.std())


def _decay(optimizer: torch.optim.Optimizer, rate: float, progress: float) -> None:
    """Linear decay to a tenth over the last half of training."""
    factor = 1.0 if progress < 0.5 else 1.0 - 0.9 * (progress - 0.5) / 0.5
    for group in optimizer.param_groups:
        group["lr"] = rate * factor


@torch.no_grad()
def _accuracy(model: nn.Module, images: Images, rank: int, world: int) -> float:
    """Share of correctly classified test images; the work is split over the ranks."""
    mean, scale = _normalisation(images)
    count = len(images.test_x)
    right: Tensor = torch.zeros((), dtype=torch.int64)
    mine = torch.arange(rank, count, world)
    for part in mine.split(500):
        scores = model((images.test_x[part].float() - mean) / scale)
        right += (scores.argmax(dim=1) == images.test_y[part]).sum()
    dist.all_reduce(right)
    return int(right) / count


def _sent(handle: Handle | None, dense: int, steps: int, world: int) -> tuple[float, float]:
    """Bytes leaving this rank and bytes passed to collectives, per step."""
    if handle is None:
        return 2.0 * dense * (world - 1) / world, float(dense)  # DDP's ring all-reduce
    stats = handle.stats()
    return stats.leaving_bytes / steps, stats.payload_bytes / steps
