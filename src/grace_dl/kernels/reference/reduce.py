"""Sums by fixed blocks and a fixed tree, so that no thread count or instruction set changes a bit."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["halve", "tree_sum"]

BLOCK = 1024


def halve(rows: Tensor) -> Tensor:
    """Sum of each row (float64, a power of two long): the upper half is added to the lower until one is left."""
    while rows.shape[-1] > 1:
        half = rows.shape[-1] // 2
        rows = rows[..., :half] + rows[..., half:]
    return rows[..., 0]


def tree_sum(values: Tensor) -> float:
    """Sum of all values in float64: blocks of 1024, zero padded and halved, then the same over the block sums."""
    y = values.to(torch.float64).reshape(-1)
    if y.numel() == 0:
        return 0.0
    while True:
        y = halve(pad(y, (0, -y.numel() % BLOCK)).view(-1, BLOCK))
        if y.numel() == 1:
            return float(y)
