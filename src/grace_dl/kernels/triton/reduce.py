"""Triton: sums over the fixed tree."""

from __future__ import annotations

import torch
from torch import Tensor

from .launch import run, tiles
from .programs import common


def row_totals(sums: Tensor) -> Tensor:
    """The sum of each row of float64 numbers, by blocks of 1024."""
    rows = sums.shape[0]
    while (width := sums.shape[1]) > 1:
        above = torch.empty(rows, tiles(width, 1024), dtype=torch.float64, device=sums.device)
        run(common.row_sums, (above.shape[1], rows), sums, sums, width, above)
        sums = above
    return sums.view(-1)
