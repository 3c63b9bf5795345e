"""Evaluation of a model on the test data, which is split over the ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .batches import Batch
from .meters import Meter, flatten


@torch.no_grad()
def evaluate(
    model: nn.Module,
    criterion: nn.Module,
    batches: Iterable[Batch],
    place: Callable[[Tensor], Tensor],
    meter: Meter,
) -> dict[str, float]:
    """Loss and accuracy over all ranks; `place` moves inputs to the device, `meter` starts empty."""
    model.eval()
    with _averaged_buffers(model):
        for inputs, targets in batches:
            scores, targets = flatten(model(place(inputs)), targets.to(meter.sums.device))
            meter.add(criterion(scores, targets), scores, targets)
    return meter.result("test")


@contextlib.contextmanager
def _averaged_buffers(model: nn.Module) -> Iterator[None]:
    """Average running statistics over ranks during an evaluation."""
    if not dist.is_initialized():
        yield
        return
    own = [(buffer, buffer.clone()) for buffer in model.buffers() if buffer.is_floating_point()]
    for buffer, _ in own:
        dist.all_reduce(buffer)
        buffer.div_(dist.get_world_size())
    yield
    for buffer, before in own:
        buffer.copy_(before)
