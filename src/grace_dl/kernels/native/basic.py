"""Compiled: forming the compensated gradient, and the check for NaN and infinity."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import _native
from ..reference import basic as reference
from .pointer import address, native_dtype, threads

__all__ = ["all_finite", "axpby_"]

_EXPONENT = {
    torch.float16: (2, 0x7C00),
    torch.bfloat16: (2, 0x7F80),
    torch.float32: (4, 0x7F800000),
    torch.float64: (8, 0x7FF0000000000000),
}


def all_finite(x: Tensor) -> bool:
    """Whether `x` holds no infinity and no NaN."""
    kind = _EXPONENT.get(x.dtype)
    if kind is None or not x.is_cpu or not x.is_contiguous():
        return reference.all_finite(x)
    return _native.all_finite(x.data_ptr(), x.numel(), *kind, threads())


def axpby_(x: Tensor, g: Tensor, beta: float, gamma: float) -> Tensor:
    """x = beta * x + gamma * g, in place, every operation rounded."""
    wide = native_dtype(x)
    if wide is None:
        return reference.axpby_(x, g, beta, gamma)
    n = x.numel()
    _native.axpby(wide, address(x, x.dtype, n), address(g, x.dtype, n), beta, gamma, n, threads())
    return x
