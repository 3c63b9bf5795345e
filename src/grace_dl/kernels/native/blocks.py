"""Compiled stochastic rounding to a few levels with one scale per block."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import _native
from ..check import broken
from ..reference import blocks as reference
from .pointer import address, native_dtype, part_address, source, threads

__all__ = ["block_add", "block_encode"]


def block_encode(
    x: Tensor,
    g: Tensor | None,
    beta: float,
    gamma: float,
    ef: bool,
    block: int,
    levels: int,
    bits: int,
    norm: str,
    word: int,
    codes: Tensor,
    scales: Tensor,
) -> None:
    wide = native_dtype(x)
    if wide is None:
        return reference.block_encode(x, g, beta, gamma, ef, block, levels, bits, norm, word, codes, scales)
    n = x.numel()
    code = part_address(codes, torch.uint8, (n * bits + 7) // 8)
    scale = part_address(scales, x.dtype, -(-n // block))
    l2 = norm == "l2"
    _native.block_encode(
        wide, *source(x, g, n), n, beta, gamma, ef, block, levels, bits, l2, word, code, scale, threads()
    )


def block_add(out: Tensor, codes: Tensor, scales: Tensor, block: int, levels: int, bits: int) -> None:
    wide = native_dtype(out)
    if wide is None:
        return reference.block_add(out, codes, scales, block, levels, bits)
    n = out.numel()
    code = part_address(codes, torch.uint8, (n * bits + 7) // 8)
    scale = part_address(scales, out.dtype, -(-n // block))
    where = address(out, out.dtype, n)
    if not _native.block_add(wide, where, n, block, levels, bits, code, scale, threads()):
        raise broken(f"a block's scale is negative or not finite, or a code is above {2 * levels}")
