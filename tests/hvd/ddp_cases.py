"""The gradients that the Horovod tests use, through DDP."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import grace_dl as grace
from hvd.steps import CASES, Chosen, sequence


def contract(rank: int, world: int) -> dict[str, list[torch.Tensor]]:
    found = {}
    for case in CASES:
        grads = sequence(rank, world)
        model = DDP(Chosen(grads[0].shape))
        grace.attach(model, case.value())
        results = []
        for c in grads:
            model.zero_grad()
            model(c).backward()
            results.append(model.module.layer.weight.grad.clone())
        found[str(case)] = results
    return found
