"""Compiled: SketchML's quantile buckets."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import _native
from ..check import broken
from ..reference import sketch as reference
from ..reference.bits import packed_bytes
from .pointer import address, native_dtype, part_address, source, threads

__all__ = ["sketch_add", "sketch_encode"]


def sketch_encode(
    x: Tensor, g: Tensor | None, beta: float, gamma: float, ef: bool, bits: int, codes: Tensor, means: Tensor
) -> None:
    """Code each element by the quantile bucket it falls in; boundaries come from a strided sample."""
    wide, n = native_dtype(x), x.numel()
    if wide is None or n == 0:
        return reference.sketch_encode(x, g, beta, gamma, ef, bits, codes, means)
    out = part_address(codes, torch.uint8, packed_bytes(n, bits)), part_address(means, x.dtype, 1 << bits)
    _native.sketch_encode(wide, *source(x, g, n), n, beta, gamma, ef, bits, *out, threads())


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
