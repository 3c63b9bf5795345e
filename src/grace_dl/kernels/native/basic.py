"""Compiled: the compensated gradient, and the check for NaN and infinity."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

import grace_dl._native as _native

from ..faults import RESULT_NOT_FINITE, Fault
from ..reference import basic as reference
from .pointer import address, native_dtype, pairs, threads

__all__ = [
    "all_finite",
    "average_",
    "axpby_",
    "clear_",
    "copy_finite_",
    "divide_",
    "largest",
    "ordinary",
    "square_sum",
]

_EXPONENT = {
    torch.float16: (2, 0x7C00),
    torch.bfloat16: (2, 0x7F80),
    torch.float32: (4, 0x7F800000),
    torch.float64: (8, 0x7FF0000000000000),
}

_LARGE = {
    torch.float16: 0x7C00,
    torch.bfloat16: 0x4F80,
    torch.float32: 0x4F800000,
    torch.float64: 0x43C0000000000000,
}
"""The exponents of `limits.LARGE`, as bits."""

_BITS = {torch.float16: "<e", torch.bfloat16: "<e", torch.float32: "<f", torch.float64: "<d"}


def all_finite(x: Tensor) -> bool:
    """Whether `x` holds no infinity and no NaN."""
    kind = _EXPONENT.get(x.dtype)
    if kind is None or not x.is_cpu or not x.is_contiguous():
        return reference.all_finite(x)
    return _native.exponents_below(x.data_ptr(), x.numel(), *kind, kind[1], threads())


def ordinary(x: Tensor) -> bool:
    """Whether all magnitudes of `x` are below `limits.LARGE`."""
    kind = _EXPONENT.get(x.dtype)
    if kind is None or not x.is_cpu or not x.is_contiguous():
        return reference.ordinary(x)
    return _native.exponents_below(x.data_ptr(), x.numel(), *kind, _LARGE[x.dtype], threads())


def copy_finite_(outs: Sequence[Tensor], xs: Sequence[Tensor]) -> list[bool]:
    """out = x for each pair, unless x holds an infinity or NaN; whether it does not."""
    kind, at = _EXPONENT.get(xs[0].dtype), pairs(outs, xs)
    if kind is None or at is None:
        return reference.copy_finite_(outs, xs)
    return _native.copy_finite(*at, *kind, threads())


def average_(outs: Sequence[Tensor], parts: Sequence[Sequence[Tensor]], divisor: float) -> None:
    """Each of `outs` = the sum of its part of every rank, in their order, over `divisor`."""
    wide, at = native_dtype(outs[0]), [pairs(outs, of_rank) for of_rank in parts]
    found = [one for one in at if one is not None]
    if wide is None or len(found) < len(parts):
        return reference.average_(outs, parts, divisor)
    targets, _, sizes = found[0]
    _native.average(wide, targets, [sources for _, sources, _ in found], sizes, divisor, threads())


def axpby_(x: Tensor, g: Tensor, beta: float, gamma: float) -> Tensor:
    """x = beta * x + gamma * g, in place, every operation rounded."""
    wide = native_dtype(x)
    if wide is None:
        return reference.axpby_(x, g, beta, gamma)
    n = x.numel()
    _native.axpby(wide, address(x, x.dtype, n), address(g, x.dtype, n), beta, gamma, n, threads())
    return x


def largest(x: Tensor) -> float:
    """The largest magnitude of `x`; not finite if an element is not."""
    kind = _BITS.get(x.dtype)
    if kind is None or not x.is_cpu or not x.is_contiguous():
        return reference.largest(x)
    bits = _native.largest(x.data_ptr(), x.numel(), x.element_size(), threads())
    if x.dtype is torch.bfloat16:
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    return struct.unpack(kind, bits.to_bytes(x.element_size(), "little"))[0]


def divide_(x: Tensor, divisor: float) -> Fault:
    """x = x / divisor; a fault if the result is not finite."""
    wide, n = native_dtype(x), x.numel()
    if wide is None or not x.is_contiguous():
        return reference.divide_(x, divisor)
    return 0 if _native.divide(wide, x.data_ptr(), divisor, n, threads()) else RESULT_NOT_FINITE


def clear_(out: Tensor) -> None:
    """Zero all of `out`; large tensors without reading them into the cache first."""
    if native_dtype(out) is None or not out.is_contiguous():
        return reference.clear_(out)
    _native.clear(out.data_ptr(), out.nbytes, threads())


def square_sum(x: Tensor) -> float:
    """The sum of squares in float64, bit-identical on every backend."""
    wide = native_dtype(x)
    if wide is None:
        return reference.square_sum(x)
    return _native.square_sum(wide, address(x, x.dtype, x.numel()), x.numel(), threads())
