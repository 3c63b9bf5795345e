"""Which elements a sparse all-reduce sends: those that fit into their frames, and the largest averages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import narrow
from ..kernels import Source
from .sparse_frame import SparseParts


@dataclass(slots=True)
class Elements:
    """Selected elements of several parameters: positions in ascending order, and values."""

    positions: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def add(self, positions: Tensor, values: Tensor) -> None:
        self.positions.append(positions)
        self.values.append(values)

    @property
    def count(self) -> int:
        return sum(part.numel() for part in self.values)


def fitting(owner: Tensor, values: Tensor, ranks: int, room: int) -> Tensor | None:
    """Which elements fit if an owner gets `room` at most: those with the largest magnitudes; None if all do.

    >>> fitting(torch.tensor([0, 1, 0, 0]), torch.tensor([1.0, 2.0, -3.0, 2.0]), ranks=2, room=2).tolist()
    [False, True, True, True]
    """
    counts = torch.bincount(owner, minlength=ranks)
    if int(counts.max()) <= room:
        return None
    order = torch.argsort(values.abs(), descending=True, stable=True)
    order = order[torch.argsort(owner[order], stable=True)]
    first = (counts.cumsum(0) - counts)[owner[order]]
    kept = torch.empty_like(owner, dtype=torch.bool)
    kept[order] = torch.arange(owner.numel(), device=owner.device) - first < room
    return kept


def move_largest(total: Tensor, parts: Sequence[Tensor], out: SparseParts) -> None:
    """Move as many elements of `total` as there is room for into a frame: those largest for their parameter.

    `parts` are the parameters of `total`. Magnitudes are compared in units of a parameter's root mean square: gradients of
    some parameters are far smaller than those of others, and would wait long.
    """
    room = out.values.numel()
    if not room:
        return
    kernel, tiny = kernels.of(total), torch.finfo(total.dtype).tiny
    keys = torch.empty_like(total)
    for part, key in zip(parts, keys.split([part.numel() for part in parts])):
        scale = math.sqrt(kernel.square_sum(part) / part.numel())
        torch.div(part, scale if scale >= tiny else 1.0, out=key)
    kernel.topk_encode(
        Source(keys), room, torch.empty(room, dtype=keys.dtype, device=keys.device), out.indices
    )
    places = kernel.decode_indices(out.indices, total.numel(), room)
    taken = total[places]
    out.values.copy_(narrow(taken, out.values.dtype))
    out.number.fill_(room)
    total[places] = taken - out.values.to(total.dtype)
