"""Small models and loops for tests through DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import grace_dl as grace
from grace_dl import Handle, Method

BUCKET_MB = 0.005
"""Small enough that the models below fill several buckets."""

EXACT = grace.topk(1.0, dense_below=0)
"""Compression in the limit of none: the result must be the plain average."""

LOSSY = grace.topk(0.05)


class MLP(nn.Sequential):
    def __init__(self, width: int = 64) -> None:
        super().__init__(
            nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
        )


def build(make: Callable[[], nn.Module] = MLP, seed: int = 1) -> nn.Module:
    """A model that is the same on every rank, leaving the rank's own generator alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def attach(model: nn.Module, method: Method | str, scaler: Any = None, **ddp: Any) -> tuple[DDP, Handle]:
    """The model in DDP with several buckets, and the handle of its compression."""
    wrapped = DDP(model, bucket_cap_mb=BUCKET_MB, **ddp)
    return wrapped, grace.attach(wrapped, method, scaler=scaler)


def batches(rank: int, steps: int, shape: tuple[int, ...] = (6, 20)) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(shape, generator=generator) for _ in range(steps)]


def train(model: nn.Module, inputs: list[torch.Tensor], lr: float = 0.05) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x in inputs:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return model


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters as one vector, for comparing replicas."""
    return torch.cat([p.detach().reshape(-1).double() for p in model.parameters()])
