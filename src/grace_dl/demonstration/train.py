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
from ..bench.step_worker import agreed
from ..data import Images, load_images
from ..digest import digest
from ..errors import ConfigError
from ..handle import Handle
from ..integrations.attach import attach
from ..workers import Emit
from .plan import Result, Run, Settings

WARMUP = 5
"""Warm-up steps excluded from the median: buckets are rebuilt and buffers allocated."""
CHECKED = 10
"""The step after which parameters are compared between networks, and the length of a timed training is chosen."""


def work(
    rank: int, world: int, emit: Emit, settings: Settings, runs: Sequence[Run], network: str
) -> list[Result]:
    """Train all runs on one network; emits ("start", run), ("step", run, step, of, accuracy) and ("end", run, result)
    events."""
    torch.set_num_threads(1)
    images = load_images(settings.task)
    results = []
    for place, run in enumerate(runs):
        emit(("start", place))
        results.append(_train(rank, world, emit, settings, place, run, images, network))
        emit(("end", place, results[-1]))
    return results


def network_for(images: Images) -> nn.Module:
    """A convolutional network for images of at least 8 × 8 pixels. Most of its parameters (1.6 million for 28 × 28 pixels,
    6.5 MB of gradients) are in one matrix, so a step sends much and computes little."""
    channels, side = images.train_x.shape[1], images.train_x.shape[-1]
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (side // 4) ** 2, 1024),
        nn.ReLU(),
        nn.Linear(1024, images.classes),
    )


def _train(
    rank: int,
    world: int,
    emit: Emit,
    settings: Settings,
    place: int,
    run: Run,
    images: Images,
    network: str,
) -> Result:
    torch.manual_seed(0)  # every run starts from the same weights
    model = DistributedDataParallel(network_for(images))
    handle = None if run.method == DDP else attach(model, run.method)
    optimizer = torch.optim.SGD(model.parameters(), lr=run.rate, momentum=run.momentum)
    lossf = nn.CrossEntropyLoss()
    parameters = sum(p.numel() for p in model.parameters())

    first = network == settings.rates[0]
    steps = total_steps(settings, images)
    until = steps
    evaluate_every = max(1, steps // settings.evaluations)
    times: list[float] = []
    points: list[tuple[int, float]] = []
    state = ""
    for step, (x, y) in enumerate(batches(images, settings.batch_size, rank, world, steps), start=1):
        _decay(optimizer, run.rate, step / steps)
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = lossf(model(x), y)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
        if step == min(CHECKED, steps):
            state = digest([p.detach() for p in model.parameters()])
            if not first:
                until = agreed(min(steps, max(step, int(settings.seconds / _median(times)))))
        if first and (step % evaluate_every == 0 or step == steps):
            points.append((step, _accuracy(model.module, images, rank, world)))
        emit(("step", place, step, until, points[-1][1] if points else None))
        if step == until:
            break
    result = Result(
        method=run.method,
        network=network,
        steps=steps,
        timed=until,
        parameters=parameters,
        sent_per_step=_sent(handle, 4 * parameters, until, world),
        dense_per_step=4.0 * parameters,
        step_seconds=_median(times),
        accuracy=points[-1][1] if points else float("nan"),
        digest=state,
    )
    result.points = result.paced(points)
    return result


def _median(times: list[float]) -> float:
    return statistics.median(times[WARMUP:] or times)


def total_steps(settings: Settings, images: Images) -> int:
    """Steps of a whole training."""
    per_epoch = len(images.train_x) // (settings.batch_size * settings.workers)
    if per_epoch == 0:
        raise ConfigError(
            f"--batch-size {settings.batch_size} on {settings.workers} workers is more than the {len(images.train_x):,} images "
            f"of {images.name}; give at most {len(images.train_x) // settings.workers}."
        )
    return max(1, round(settings.epochs * per_epoch))


def batches(images: Images, batch: int, rank: int, world: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
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


def _sent(handle: Handle | None, dense: int, steps: int, world: int) -> float:
    """Bytes leaving this rank in a step."""
    if handle is None:
        return 2.0 * dense * (world - 1) / world  # DDP's ring all-reduce
    return handle.stats().leaving_bytes / steps
