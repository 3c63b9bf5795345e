"""Compiled: SketchML's quantile buckets."""

from __future__ import annotations

import torch
from torch import Tensor

import grace_dl._native as _native

from ..check import broken
from ..reference import sketch as reference
from ..source import Source
from ..wire import packed_bytes
from .pointer import address, inputs, native_dtype, part_address, threads

__all__ = ["sketch_add", "sketch_encode"]


def sketch_encode(source: Source, bits: int, codes: Tensor, means: Tensor) -> None:
    """Code each element by the quantile bucket it falls in; boundaries come from a strided sample."""
    x = source.x
    wide, n = native_dtype(x), x.numel()
    if wide is None or n == 0:
        return reference.sketch_encode(source, bits, codes, means)
    out = part_address(codes, torch.uint8, packed_bytes(n, bits)), part_address(means, x.dtype, 1 << bits)
    _native.sketch_encode(wide, *inputs(source, n), bits, *out, threads())


def sketch_add(out: Tensor, codes: Tensor, means: Tensor, bits: int, alpha: float = 1.0) -> None:
    """`out += alpha * decoded`."""
    wide = native_dtype(out)
    if wide is None:
        return reference.sketch_add(out, codes, means, bits, alpha)
    n = out.numel()
    data = part_address(codes, torch.uint8, packed_bytes(n, bits)), part_address(means, out.dtype, 1 << bits)
    fault = _native.sketch_add(wide, address(out, out.dtype, n), n, *data, bits, alpha, threads())
    if fault:
        raise broken(_native.FAULTS[fault])
