"""A small training by 1-bit Adam and 0/1 Adam: model, data, optimizers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import grace_dl as grace
from contract.cases import bits_equal
from grace_dl.integrations.momentum_adam import MomentumAdam

LR, DECAY = 0.01, 0.1
LONGEST = (1 - 0.9) / (1 - 0.999) ** 0.5
"""The longest step of Adam, over its rate."""


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 128), nn.Tanh(), nn.Linear(128, 16), nn.Tanh(), nn.Linear(16, 1))


def backward(model: nn.Module, rank: int, step: int) -> None:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(8, 12, generator=generator)
    model.zero_grad()
    nn.functional.mse_loss(model(x), x[:, :1] - x[:, 1:2]).backward()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def onebit(model: nn.Module, warmup: int = 4, **settings: Any) -> grace.OneBitAdam:
    return grace.OneBitAdam(model.named_parameters(), lr=LR, weight_decay=DECAY, warmup=warmup, **settings)


def zeroone(model: nn.Module, **settings: Any) -> grace.ZeroOneAdam:
    chosen = {"warmup": 6, "variance_updates": 2, "local_steps": 4, "longest": 4, **settings}
    return grace.ZeroOneAdam(model.named_parameters(), lr=LR, weight_decay=DECAY, **chosen)


MAKERS: dict[str, Any] = {"onebit": onebit, "zeroone": zeroone}


def train(optimizer: MomentumAdam, model: nn.Module, rank: int, first: int, last: int) -> None:
    for step in range(first, last):
        backward(model, rank, step)
        optimizer.step()


def same_on_all_ranks(answers: list[Tensor]) -> bool:
    return all(bits_equal(answers[0], other) for other in answers[1:])
