"""Compiled TernGrad."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import _native
from ..check import broken, checked_scale
from ..reference import ternary as reference
from .pointer import address, native_dtype, part_address, source, threads

__all__ = ["ternary_add", "ternary_encode"]


def ternary_encode(
    x: Tensor,
    g: Tensor | None,
    beta: float,
    gamma: float,
    ef: bool,
    clip: float,
    word: int,
    codes: Tensor,
    scale: Tensor,
) -> None:
    wide = native_dtype(x)
    if wide is None:
        return reference.ternary_encode(x, g, beta, gamma, ef, clip, word, codes, scale)
    n = x.numel()
    code, top = part_address(codes, torch.uint8, -(-n // 5)), part_address(scale, x.dtype, 1)
    _native.ternary_encode(wide, *source(x, g, n), n, beta, gamma, ef, clip, word, code, top, threads())


def ternary_add(out: Tensor, codes: Tensor, scale: Tensor) -> None:
    wide = native_dtype(out)
    if wide is None:
        return reference.ternary_add(out, codes, scale)
    n = out.numel()
    code = part_address(codes, torch.uint8, -(-n // 5))
    where = address(out, out.dtype, n)
    if not _native.ternary_add(wide, where, n, code, checked_scale(scale, out.dtype), threads()):
        raise broken("a byte of five trits is above 242")
