"""Compiled TernGrad."""

from __future__ import annotations

import torch
from torch import Tensor

import grace_dl._native as _native

from ..check import broken, checked_scale
from ..reference import ternary as reference
from ..source import Source
from ..wire import trit_bytes
from .pointer import address, inputs, native_dtype, part_address, threads

__all__ = ["ternary_add", "ternary_encode"]


def ternary_encode(source: Source, clip: float, word: int, codes: Tensor, scale: Tensor) -> None:
    x = source.x
    wide = native_dtype(x)
    if wide is None:
        return reference.ternary_encode(source, clip, word, codes, scale)
    n = x.numel()
    code, top = part_address(codes, torch.uint8, trit_bytes(n)), part_address(scale, x.dtype, 1)
    _native.ternary_encode(wide, *inputs(source, n), clip, word, code, top, threads())


def ternary_add(out: Tensor, codes: Tensor, scale: Tensor) -> None:
    wide = native_dtype(out)
    if wide is None:
        return reference.ternary_add(out, codes, scale)
    n = out.numel()
    code = part_address(codes, torch.uint8, trit_bytes(n))
    where = address(out, out.dtype, n)
    if not _native.ternary_add(wide, where, n, code, checked_scale(scale, out.dtype), threads()):
        raise broken("a byte of five trits is above 242")
