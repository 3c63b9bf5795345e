"""A small network trained through DDP on real ranks, for one method after another in one call."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from contract.cases import Case
from grace_dl import attach

NETWORK = (40, 48, 32, 4)
"""Widths. Two matrices above the 1024 elements from which parameters are compressed, in several buckets."""


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(NETWORK):
            layers += [nn.Linear(before, after), nn.Tanh()]
        return nn.Sequential(*layers[:-1])


def train(rank: int, world: int, cases: list[Case], steps: int) -> list[dict[str, Any]]:
    """Train with each case; the data differ between ranks, the starting point does not."""
    results = []
    for case in cases:
        generator = torch.Generator().manual_seed(50 + rank)
        inputs = torch.randn(64, NETWORK[0], generator=generator)
        labels = (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()
        model = DDP(network(), bucket_cap_mb=0.01)
        handle = attach(model, case.value())
        # Signs have no scale of their own: their steps are taken as small as their users take them.
        rate = 0.002 if "sign" in case.method and case.method != "efsignsgd" else 0.1
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        losses = []
        for step in range(steps):
            torch.rand(rank + 1)  # ranks' own generators drift apart
            batch = torch.arange(step * 16, step * 16 + 16) % 64
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        stats = handle.stats()
        results.append(
            {
                "parameters": torch.cat([p.detach().view(-1) for p in model.module.parameters()]),
                "losses": losses,
                "compressed": case.method == "none" or stats.payload_bytes < stats.dense_bytes,
                "steps": stats.steps,
            }
        )
        del model, handle
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.barrier()
    return results
