"""A small network, its batches, and how the tests of `acpsgd` train it."""

from __future__ import annotations

import torch
from torch import nn

import acpsgd

METHODS = ["acpsgd", "powersgd", "ssgd"]


class Net(nn.Module):
    """A few layers, one of them not always used."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.hidden = nn.Linear(16 * 16, 64)
        self.extra = nn.Linear(64, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x, extra=True):
        x = torch.relu(self.conv(x)).flatten(1)
        x = torch.relu(self.hidden(x))
        if extra:
            x = x + torch.relu(self.extra(x))
        return self.out(x)


def batch(step, rank=0, size=8):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 3, 4, 4, generator=generator)
    return x, (x.sum((1, 2, 3)) > 0).long()


def train(model, optimizer, steps, rank, loss=None, passes=1):
    loss = loss or nn.CrossEntropyLoss()
    values = []
    for step in steps:
        optimizer.zero_grad()
        for part in range(passes):
            x, y = batch(passes * step + part, rank)
            value = loss(model(x), y)
            value.backward()
        optimizer.step()
        values.append(value.item())
    return values


def build(method="acpsgd", seed=None, kind=torch.optim.SGD, names=True, options=None, **settings):
    if seed is not None:
        torch.manual_seed(seed)
    model = Net()
    plain = kind(model.parameters(), **(options or {"lr": 0.05}))
    settings.setdefault("rank", 2)
    optimizer = acpsgd.DistributedOptimizer(
        plain, model.named_parameters() if names else None, method=method, dense_below=0, **settings
    )
    return model, optimizer


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(results):
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))
