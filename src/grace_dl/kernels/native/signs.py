"""Compiled one-bit kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import grace_dl._native as _native

from ..check import checked_flag, checked_means, checked_scale
from ..reference import signs as reference
from ..source import Source
from ..wire import packed_bytes
from .pointer import address, inputs, native_dtype, part_address, threads

__all__ = [
    "onebit_add",
    "onebit_encode",
    "scaled_sign_add",
    "scaled_sign_encode",
    "sign_add",
    "sign_encode",
    "sign_vote",
]


def sign_encode(source: Source, word: int, bits: Tensor, flag: Tensor) -> None:
    x = source.x
    wide = native_dtype(x)
    if wide is None:
        return reference.sign_encode(source, word, bits, flag)
    n = x.numel()
    packed, some = part_address(bits, torch.uint8, packed_bytes(n, 1)), part_address(flag, torch.uint8, 1)
    _native.sign_encode(wide, *inputs(source, n, "compensated"), word, packed, some, threads())


def sign_add(out: Tensor, bits: Tensor, flag: Tensor) -> None:
    if native_dtype(out) is None:
        return reference.sign_add(out, bits, flag)
    if checked_flag(flag):
        _two_add(out, bits, -1.0, 1.0)


def sign_vote(out: Tensor, ballots: Sequence[Tensor], word: int) -> None:
    wide = native_dtype(out)
    if wide is None or not ballots:
        return reference.sign_vote(out, ballots, word)
    n = out.numel()
    packed = [part_address(bits, torch.uint8, packed_bytes(n, 1)) for bits in ballots]
    _native.sign_vote(wide, address(out, out.dtype, n), n, packed, word, threads())


def _two_add(out: Tensor, bits: Tensor, low: float, high: float) -> None:
    n = out.numel()
    packed = part_address(bits, torch.uint8, packed_bytes(n, 1))
    wide = out.dtype is torch.float64
    _native.two_add(wide, address(out, out.dtype, n), n, packed, low, high, threads())


def _deferring(source: Source, n: int) -> tuple[int, int, int, float, float, bool, int]:
    """The leading arguments of the two encoders with means; address 0 means nothing is deferred."""
    at = inputs(source, n, "deferred")
    owed = address(source.owed, source.x.dtype, 2) if at[-1] and source.owed is not None else 0
    return *at[:-1], False, owed


def scaled_sign_encode(source: Source, bits: Tensor, scale: Tensor) -> None:
    x = source.x
    wide = native_dtype(x)
    if wide is None:
        return reference.scaled_sign_encode(source, bits, scale)
    n = x.numel()
    packed, mean = part_address(bits, torch.uint8, packed_bytes(n, 1)), part_address(scale, x.dtype, 1)
    _native.scaled_sign_encode(wide, *_deferring(source, n), packed, mean, threads())


def scaled_sign_add(out: Tensor, bits: Tensor, scale: Tensor) -> None:
    if native_dtype(out) is None:
        return reference.scaled_sign_add(out, bits, scale)
    mean = checked_scale(scale, out.dtype)
    _two_add(out, bits, -mean, mean)


def onebit_encode(source: Source, bits: Tensor, means: Tensor) -> None:
    x = source.x
    wide = native_dtype(x)
    if wide is None:
        return reference.onebit_encode(source, bits, means)
    n = x.numel()
    packed, both = part_address(bits, torch.uint8, packed_bytes(n, 1)), part_address(means, x.dtype, 2)
    _native.onebit_encode(wide, *_deferring(source, n), packed, both, threads())


def onebit_add(out: Tensor, bits: Tensor, means: Tensor) -> None:
    if native_dtype(out) is None:
        return reference.onebit_add(out, bits, means)
    _two_add(out, bits, *checked_means(means, out.dtype))
