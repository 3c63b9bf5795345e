"""Compiled stochastic rounding to a few levels with one scale per block."""

from __future__ import annotations

import torch
from torch import Tensor

import grace_dl._native as _native

from .. import wire
from ..check import broken
from ..reference import blocks as reference
from ..source import Source
from .pointer import address, inputs, native_dtype, part_address, threads

__all__ = ["block_add", "block_encode"]


def block_encode(
    source: Source, block: int, levels: int, bits: int, norm: str, word: int, codes: Tensor, scales: Tensor
) -> None:
    x = source.x
    wide = native_dtype(x)
    if wide is None:
        return reference.block_encode(source, block, levels, bits, norm, word, codes, scales)
    n = x.numel()
    code = part_address(codes, torch.uint8, wire.packed_bytes(n, bits))
    scale = part_address(scales, x.dtype, wire.blocks(n, block))
    l2 = norm == "l2"
    _native.block_encode(wide, *inputs(source, n), block, levels, bits, l2, word, code, scale, threads())


def block_add(out: Tensor, codes: Tensor, scales: Tensor, block: int, levels: int, bits: int) -> None:
    wide = native_dtype(out)
    if wide is None:
        return reference.block_add(out, codes, scales, block, levels, bits)
    n = out.numel()
    code = part_address(codes, torch.uint8, wire.packed_bytes(n, bits))
    scale = part_address(scales, out.dtype, wire.blocks(n, block))
    where = address(out, out.dtype, n)
    if not _native.block_add(wide, where, n, block, levels, bits, code, scale, threads()):
        raise broken(f"a block's scale is negative or not finite, or a code is above {2 * levels}")
