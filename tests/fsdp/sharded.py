"""Sharded models, and plain FSDP2 beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from grace_dl import Handle
from values import not_none

Tensors = dict[str, Tensor]

FEEDBACK = "int4:memory=residual,dense_below=0"
"""A method with error feedback."""


class Net(nn.Module):
    """Layers whose sizes do not divide by the number of ranks, so that shards are padded."""

    def __init__(self, width: int = 37) -> None:
        super().__init__()
        self.first = nn.Linear(20, width)
        self.second = nn.Linear(width, width)
        self.last = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.second(x)))  # type: ignore[no-any-return]


def sharded(make: Callable[[], Net] = Net, **options: Any) -> Any:
    """A network, the same on every rank, of which two layers are sharded by themselves, and the last with the root."""
    torch.manual_seed(0)
    net = make()
    fully_shard(net.first, **options)
    fully_shard(net.second, **options)
    fully_shard(net, **options)
    return net


def plainly(model: Any) -> Any:
    """For plain FSDP2 on Gloo, which knows no average."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 20, generator=generator, dtype=dtype)


def grads(model: Any) -> Tensors:
    """Whole gradients."""
    return {name: not_none(p.grad).full_tensor().clone() for name, p in model.named_parameters()}


def step(model: Any, rank: int, number: int, optimizer: torch.optim.Optimizer | None = None) -> Tensors:
    """A training step; its gradients."""
    model.zero_grad()
    dtype = next(model.parameters()).dtype
    model(batch(rank, number, dtype)).square().mean().backward()
    found = grads(model)
    if optimizer is not None:
        optimizer.step()
    return found


def owed(handle: Handle, model: Any) -> Tensors:
    """What this rank has not sent, in the shapes of whole parameters: without the padding, which is at the end."""
    found = {name: handle.session.residual(name) for name, _ in model.named_parameters()}
    return {
        name: torch.zeros(p.shape)
        if found[name] is None
        else not_none(found[name])[: p.numel()].view(p.shape)
        for name, p in model.named_parameters()
    }


def close(a: Tensors, b: Tensors, tolerance: float = 1e-6) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[n], b[n], atol=tolerance, rtol=1e-4) for n in a)
