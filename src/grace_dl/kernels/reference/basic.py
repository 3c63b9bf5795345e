"""Used by every method: the compensated gradient, and the check for NaN and infinity."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..source import Source
from .reduce import tree_sum

__all__ = ["all_finite", "average_", "axpby_", "clear_", "copy_finite_", "square_sum"]


def all_finite(x: Tensor) -> bool:
    """Whether `x` holds no infinity and no NaN."""
    return bool(torch.isfinite(x).all())


def copy_finite_(outs: Sequence[Tensor], xs: Sequence[Tensor]) -> list[bool]:
    """out = x for each pair, unless x holds an infinity or NaN; whether it does not."""
    for out, x in zip(outs, xs):
        out.copy_(x)
    return [all_finite(x) for x in xs]


def average_(outs: Sequence[Tensor], parts: Sequence[Sequence[Tensor]], divisor: float) -> None:
    """Each of `outs` = the sum of its part of every rank, in their order, over `divisor`, in the precision of `outs`."""
    sums = list(outs)
    torch._foreach_copy_(sums, list(parts[0]))
    for others in parts[1:]:
        torch._foreach_add_(sums, list(others))
    torch._foreach_div_(sums, divisor)


def axpby_(x: Tensor, g: Tensor, beta: float, gamma: float) -> Tensor:
    """x = beta * x + gamma * g, in place, every operation rounded."""
    return x.mul_(beta).add_(g * gamma)


def clear_(out: Tensor) -> None:
    """Zero all of `out`."""
    out.zero_()


def square_sum(x: Tensor) -> float:
    """The sum of squares in float64, bit-identical on every backend."""
    return tree_sum(x.double() * x.double())


def compensated(source: Source) -> Tensor:
    """The flat input of an encoder: x, or beta * x + gamma * grad with every operation rounded.

    A separate product and sum: `torch.add(…, alpha=…)` may fuse them and round once.
    """
    x, grad, beta, gamma, *_ = source
    x = x.view(-1)
    return x if grad is None else x * beta + grad.view(-1) * gamma


def formed(source: Source) -> tuple[Tensor, bool]:
    """The input of an encoder, and whether the residual is stored in x; the input is then computed in x itself."""
    residual = source.leaves("residual")
    v = compensated(source)
    if residual and source.grad is not None:
        v = source.x.view(-1).copy_(v)
    return v, residual


def safe(scale: Tensor) -> Tensor:
    """The scale as a divisor: 1 where the scale is zero (all values are then zero, too)."""
    return torch.where(scale > 0, scale, 1.0)
