"""Dense kernels."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["all_finite", "axpby_"]


def all_finite(x: Tensor) -> bool:
    """Whether `x` holds no infinity and no NaN."""
    return bool(torch.isfinite(x).all())


def axpby_(x: Tensor, g: Tensor, beta: float, gamma: float) -> Tensor:
    """x = beta * x + gamma * g, in place, every operation rounded."""
    return x.mul_(beta).add_(g * gamma)
