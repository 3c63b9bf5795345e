"""Compiled casts to 16 bits, and to e4m3 with a scale per block."""

from __future__ import annotations

import torch
from torch import Tensor

import grace_dl._native as _native

from .. import wire
from ..check import broken
from ..reference import cast as reference
from ..source import Source
from .pointer import address, inputs, native_dtype, part_address, threads

__all__ = ["cast_add", "cast_encode", "fp8_add", "fp8_encode"]

_BRAIN = {torch.float16: False, torch.bfloat16: True}
LARGEST_BLOCK = 1024


def cast_encode(source: Source, workers: int, limit: float, out: Tensor) -> None:
    x = source.x
    wide, brain = native_dtype(x), _BRAIN.get(out.dtype)
    if wide is None or brain is None:
        return reference.cast_encode(source, workers, limit, out)
    n = x.numel()
    data = part_address(out, out.dtype, n)
    _native.cast_encode(wide, *inputs(source, n), brain, workers, limit, data, threads())


def cast_add(out: Tensor, payload: Tensor) -> None:
    wide, brain = native_dtype(out), _BRAIN.get(payload.dtype)
    if wide is None or brain is None:
        return reference.cast_add(out, payload)
    n = out.numel()
    data = part_address(payload, payload.dtype, n)
    _native.cast_add(wide, address(out, out.dtype, n), n, brain, data, threads())


def fp8_encode(source: Source, block: int, codes: Tensor, scales: Tensor) -> None:
    x = source.x
    wide = native_dtype(x)
    if wide is None or block > LARGEST_BLOCK:
        return reference.fp8_encode(source, block, codes, scales)
    n = x.numel()
    code, scale = part_address(codes, torch.uint8, n), part_address(scales, x.dtype, wire.blocks(n, block))
    _native.fp8_encode(wide, *inputs(source, n), block, code, scale, threads())


def fp8_add(out: Tensor, codes: Tensor, scales: Tensor, block: int) -> None:
    wide = native_dtype(out)
    if wide is None:
        return reference.fp8_add(out, codes, scales, block)
    n = out.numel()
    code, scale = part_address(codes, torch.uint8, n), part_address(scales, out.dtype, wire.blocks(n, block))
    if not _native.fp8_add(wide, address(out, out.dtype, n), n, block, code, scale, threads()):
        raise broken("a block's scale is negative, too large or not finite, or an e4m3 code stands for NaN")
