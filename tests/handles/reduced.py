"""A network whose gradients an optimizer's handle exchanges, beside plain averaging."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import grace_dl as grace

METHODS = ["none", "topk:0.1,dense_below=0", "powersgd:1", "int8:memory=residual", "threshold"]
"""One and several rounds, with payloads of fixed and of varying size."""

every_method = pytest.mark.parametrize("text", METHODS)


class Fails(torch.autograd.Function):
    """Raises in the backward pass, when told to."""

    armed = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if Fails.armed:
            raise RuntimeError("out of memory, or so it seems")
        return grad


class Net(nn.Module):
    """Three layers, of which one can fail between the second and the first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(Fails.apply(torch.relu(self.a(x))))))


def network() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(100 * step + rank))


def attached(
    text: str, model: Net | None = None, parameters: Any = None, **options: Any
) -> tuple[Net, torch.optim.Optimizer, Any]:
    model = model or network()
    optimizer = torch.optim.SGD(model.parameters() if parameters is None else parameters, lr=0.1)
    handle = grace.attach(optimizer, text, named_parameters=model.named_parameters(), **options)
    handle.reducer.options.bucket_bytes = 8000  # type: ignore[attr-defined]
    handle.reducer.refill()  # type: ignore[attr-defined]
    return model, optimizer, handle


def step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, number: int) -> None:
    optimizer.zero_grad()
    model(batch(rank, number)).square().mean().backward()
    optimizer.step()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def replicas_agree(model: nn.Module) -> bool:
    mine = flat(model)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return all(torch.equal(mine, other) for other in everyone)


def plain(rank: int, world: int, change: Any, steps: int) -> Tensor:
    """Training with gradients that are averaged by hand; `change(model, optimizer, number)` before each step."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(steps):
        change(model, optimizer, number)
        optimizer.zero_grad()
        model(batch(rank, number)).square().mean().backward()
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= world
        optimizer.step()
    return flat(model)
