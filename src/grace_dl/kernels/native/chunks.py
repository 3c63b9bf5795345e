"""Compiled: the largest elements of each chunk."""

from __future__ import annotations

from torch import Tensor

import grace_dl._native as _native

from .. import faults
from ..check import broken
from ..faults import Fault
from ..reference import chunks as reference
from ..source import Source
from ..wire import Chunking
from .pointer import address, inputs, native_dtype, part_address, threads
from .validity import check_values

__all__ = ["check_chunktopk", "chunktopk_add", "chunktopk_encode"]


def _layout(chunking: Chunking, n: int) -> tuple[int, int, int, int, int]:
    rest = n % chunking.size
    return (
        chunking.size,
        chunking.kept,
        chunking.of_rest(rest).kept if rest else 0,
        chunking.bits,
        chunking.width,
    )


def chunktopk_encode(
    source: Source, chunking: Chunking, positions: Tensor, codes: Tensor, means: Tensor
) -> None:
    """Select the largest magnitudes of each chunk; of equal ones the first."""
    x = source.x
    wide, n = native_dtype(x), x.numel()
    if wide is None or n == 0:
        return reference.chunktopk_encode(source, chunking, positions, codes, means)
    parts = zip((positions, codes, means), chunking.spec(n), strict=True)
    out = [part_address(part, dtype, count) for part, (dtype, count) in parts]
    _native.chunktopk_encode(wide, *inputs(source, n), *_layout(chunking, n), *out, threads())


def check_chunktopk(
    positions: Tensor, codes: Tensor, means: Tensor, d: int, chunking: Chunking, most: float
) -> Fault:
    """Positions must increase within their chunks, and means be finite."""
    if not positions.is_cpu:
        return reference.check_chunktopk(positions, codes, means, d, chunking, most)
    parts = zip((positions, codes, means), chunking.spec(d), strict=True)
    data = [part_address(part, dtype, count) for part, (dtype, count) in parts]
    fault: int = _native.chunktopk_check(d, *_layout(chunking, d), *data, threads())
    return fault or check_values(means, most, faults.MEAN_NOT_FINITE)


def chunktopk_add(
    out: Tensor, positions: Tensor, codes: Tensor, means: Tensor, chunking: Chunking, alpha: float = 1.0
) -> None:
    """`out += alpha * decoded`; everything is checked before the first element is touched."""
    wide, n = native_dtype(out), out.numel()
    if wide is None:
        return reference.chunktopk_add(out, positions, codes, means, chunking, alpha)
    parts = zip((positions, codes, means), chunking.spec(n), strict=True)
    data = [part_address(part, dtype, count) for part, (dtype, count) in parts]
    fault = _native.chunktopk_add(
        wide, address(out, out.dtype, n), n, *_layout(chunking, n), *data, alpha, threads()
    )
    if fault:
        raise broken(_native.FAULTS[fault])
