"""How large state is, and how large it may become."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import kernels


def norm(x: Tensor) -> float:
    """The Euclidean norm; infinite if an element is not finite or the norm is too large for float64.

    >>> norm(torch.full((4,), 0.5)), norm(torch.tensor([1.0, torch.inf]))
    (1.0, inf)
    """
    kernel = kernels.of(x)
    top = kernel.largest(x)
    if not math.isfinite(top):
        return math.inf
    if x.dtype != torch.float64:
        return math.sqrt(kernel.square_sum(x))
    return top * math.sqrt(kernel.square_sum(x / top)) if top else 0.0


def most(dtype: torch.dtype, workers: int) -> float:
    """The largest norm of what a rank may owe: sums over ranks, and of a gradient and it, are still finite."""
    return torch.finfo(dtype).max / (2 * workers)
