"""Compiled: forming the compensated gradient, and the check for NaN and infinity."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import _native
from ..reference import basic as reference
from .pointer import address, native_dtype, threads

__all__ = ["all_finite", "axpby_", "copy_finite_", "quotient_"]

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
    return _native.all_finite(x.data_ptr(), 0, x.numel(), *kind, threads())


def copy_finite_(out: Tensor, x: Tensor) -> bool:
    """out = x, unless x holds an infinity or NaN; whether it does not."""
    kind = _EXPONENT.get(x.dtype)
    if kind is None or out.dtype is not x.dtype or not x.is_cpu or not x.is_contiguous():
        return reference.copy_finite_(out, x)
    n = x.numel()
    return _native.all_finite(x.data_ptr(), address(out, x.dtype, n), n, *kind, threads())


def quotient_(out: Tensor, x: Tensor, divisor: float) -> None:
    """out = x / divisor."""
    wide = native_dtype(out)
    if wide is None or x.dtype is not out.dtype:
        return reference.quotient_(out, x, divisor)
    n = x.numel()
    _native.quotient(wide, address(out, out.dtype, n), address(x, out.dtype, n), divisor, n, threads())


def axpby_(x: Tensor, g: Tensor, beta: float, gamma: float) -> Tensor:
    """x = beta * x + gamma * g, in place, every operation rounded."""
    wide = native_dtype(x)
    if wide is None:
        return reference.axpby_(x, g, beta, gamma)
    n = x.numel()
    _native.axpby(wide, address(x, x.dtype, n), address(g, x.dtype, n), beta, gamma, n, threads())
    return x
