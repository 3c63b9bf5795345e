"""Used by every method: the compensated gradient, and the check for NaN and infinity."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..faults import RESULT_NOT_FINITE, Fault
from ..limits import HUGE, LARGE
from ..source import Source
from .reduce import tree_sum

__all__ = [
    "all_finite",
    "average_",
    "axpby_",
    "clear_",
    "copy_finite_",
    "divide_",
    "finite_each",
    "largest",
    "ordinary",
    "square_sum",
]


def all_finite(x: Tensor) -> bool:
    """Whether `x` holds no infinity and no NaN."""
    return bool(torch.isfinite(x).all())


def ordinary(x: Tensor) -> bool:
    """Whether all magnitudes of `x` are below `limits.LARGE`."""
    return largest(x) < LARGE[x.dtype]


def copy_finite_(outs: Sequence[Tensor], xs: Sequence[Tensor]) -> list[bool]:
    """out = x for each pair, unless x holds an infinity or NaN; whether it does not."""
    for out, x in zip(outs, xs):
        out.copy_(x)
    return [all_finite(x) for x in xs]


def finite_each(xs: Sequence[Tensor]) -> Tensor:
    """Whether all magnitudes of each of `xs` are below `limits.HUGE`, as a tensor on their device, without a host wait."""
    filled = [x if x.numel() else x.new_zeros(1) for x in xs]
    tops = torch._foreach_norm(filled, math.inf)
    return torch.stack([top.to(tops[0].dtype) for top in tops]) < HUGE[tops[0].dtype]


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


def largest(x: Tensor) -> float:
    """The largest magnitude of `x`; not finite if an element is not."""
    return float(x.abs().max()) if x.numel() else 0.0


def divide_(x: Tensor, divisor: float) -> Fault:
    """x = x / divisor; a fault if the result is not finite."""
    if not x.numel():
        return 0
    # The largest magnitude tells in one launch what `isfinite` tells in five.
    top = torch.linalg.vector_norm(x.div_(divisor), math.inf)
    return (~(top < math.inf)).to(torch.int32) * RESULT_NOT_FINITE


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
