"""One parameter whose gradient is chosen by the test, and the sequence of gradients all engines are given."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from contract.cases import CASES, Case, build, gradients

NAME = "layer.weight"
STEPS = 3


class Chosen(nn.Module):
    """`model(c).backward()` leaves exactly `c` in the gradient of `layer.weight`."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Module()
        self.layer.weight = nn.Parameter(torch.zeros(shape))

    def forward(self, c: Tensor) -> Tensor:
        return (self.layer.weight * c).sum()


def sequence(rank: int, size: int) -> list[Tensor]:
    """Ordinary gradients, one that is not finite on the last rank, and an ordinary one again."""
    grads = gradients(size, STEPS + 2)[rank]
    if rank == size - 1:
        grads[STEPS] = grads[STEPS].clone()
        grads[STEPS].view(-1)[7] = float("nan")
    return grads


def record(grace, results: list[Tensor]) -> dict:
    """What a test compares of a case."""
    owed = grace.residual(NAME)
    return {
        "results": results,
        "owed": None if owed is None else owed.clone(),
        "state": grace.state_dict(),
        "skipped": grace.stats.skipped,
        "payload": grace.stats.payload_bytes,
        "dense": grace.stats.dense_bytes,
    }


__all__ = ["CASES", "NAME", "STEPS", "Case", "Chosen", "build", "gradients", "record", "sequence"]
