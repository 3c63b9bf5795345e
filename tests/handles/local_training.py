"""A small training whose ranks take local steps: model, data, optimizers, and comparisons."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from contract.cases import bits_equal


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 8), nn.Linear(8, 1))


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(8, 12, generator=generator)
    return x, x[:, :1] - x[:, 1:2] + 0.1 * torch.randn(8, 1, generator=generator)


def local(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    x, y = batch(rank, step)
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def inner(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def nesterov(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def alike(answers: list[Any]) -> bool:
    return all(bits_equal(answers[0], other) for other in answers[1:])


def mean_of(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).mean(0)
