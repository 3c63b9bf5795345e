"""Sums over fixed blocks and a fixed tree, bit-identical for every thread count and instruction set."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 1024


def halve(rows: Tensor) -> Tensor:
    """Sum of each row (float64, a power of two long): the upper half is added to the lower until one is left."""
    while rows.shape[-1] > 1:
        half = rows.shape[-1] // 2
        rows = rows[..., :half] + rows[..., half:]
    return rows[..., 0]


def tree_sum(values: Tensor) -> float:
    """Sum of all values: blocks of 1024, zero padded and halved, then the same over the block sums.

    A block's first three halvings are in the values' own precision (sums of eight numbers), the others in float64.
    """
    y = values.reshape(-1)
    if y.numel() == 0:
        return 0.0
    while True:
        rows = pad(y, (0, -y.numel() % BLOCK)).view(-1, BLOCK)
        for _ in range(3):
            half = rows.shape[-1] // 2
            rows = rows[:, :half] + rows[:, half:]
        y = halve(rows.to(torch.float64))
        if y.numel() == 1:
            return float(y)
