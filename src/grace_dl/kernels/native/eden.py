"""Compiled EDEN."""

from __future__ import annotations

import torch
from torch import Tensor

import grace_dl._native as _native

from ..check import broken
from ..reference import eden as reference
from ..source import Source
from ..wire import EDEN_CENTROIDS, eden_sizes
from .pointer import address, inputs, native_dtype, part_address, threads

__all__ = ["eden_add", "eden_encode"]

_CENTROIDS = {bits: torch.tensor(values, dtype=torch.float64) for bits, values in EDEN_CENTROIDS.items()}


def eden_encode(
    source: Source, bits: int, least_squares: bool, word: int, codes: Tensor, scales: Tensor
) -> None:
    """Rotate and quantise each block, and scale it: unbiased, or by least squares."""
    x = source.x
    wide = native_dtype(x)
    if wide is None:
        return reference.eden_encode(source, bits, least_squares, word, codes, scales)
    n = x.numel()
    coordinates, blocks = eden_sizes(n)
    out = address(codes, torch.uint8, coordinates * bits // 8), address(scales, x.dtype, blocks)
    table = _CENTROIDS[bits].data_ptr()
    _native.eden_encode(wide, *inputs(source, n), bits, table, least_squares, word, *out, threads())


def eden_add(out: Tensor, codes: Tensor, scales: Tensor, bits: int, word: int, alpha: float = 1.0) -> None:
    """`out += alpha * decoded`."""
    wide = native_dtype(out)
    if wide is None:
        return reference.eden_add(out, codes, scales, bits, word, alpha)
    n = out.numel()
    coordinates, blocks = eden_sizes(n)
    data = part_address(codes, torch.uint8, coordinates * bits // 8), part_address(scales, out.dtype, blocks)
    table = _CENTROIDS[bits].data_ptr()
    if not _native.eden_add(wide, address(out, out.dtype, n), n, *data, bits, table, word, alpha, threads()):
        raise broken("a scale is negative or not finite")
