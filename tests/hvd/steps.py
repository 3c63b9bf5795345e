"""One parameter whose gradient is chosen by the test, and the sequence of gradients all engines are given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import grace_dl as grace
from contract.cases import CASES, Case, gradients

NAME = "layer.weight"
STEPS = 3


class Layer(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))


class Chosen(nn.Module):
    """`model(c).backward()` leaves exactly `c` in the gradient of `layer.weight`."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = Layer(shape)

    def forward(self, c: Tensor) -> Tensor:
        return (self.layer.weight * c).sum()


def sequence(rank: int, size: int) -> list[Tensor]:
    """Ordinary gradients, one that is not finite on the last rank, and an ordinary one again."""
    grads = gradients(size, STEPS + 2)[rank]
    if rank == size - 1:
        grads[STEPS] = grads[STEPS].clone()
        grads[STEPS].view(-1)[7] = float("nan")
    return grads


def record(handle: grace.Handle, results: list[Tensor]) -> dict[str, Any]:
    """What a test compares of a case."""
    owed, stats = handle.session.residual(NAME), handle.stats()
    return {
        "results": results,
        "owed": None if owed is None else owed.clone(),
        "state": handle.state_dict(),
        "skipped": stats.skipped,
        "payload": stats.payload_bytes,
        "dense": stats.dense_bytes,
    }


__all__ = ["CASES", "NAME", "STEPS", "Case", "Chosen", "gradients", "record", "sequence"]
