"""Compiled: the largest coefficients of the cosine transform of chunks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import grace_dl._native as _native

from ..check import broken
from ..faults import Fault
from ..reference import dct as reference
from ..source import Source
from ..wire import DctLayout, dct_factors
from .pointer import address, inputs, native_dtype, part_address, threads
from .sparse import VALUE_KINDS
from .validity import check_values

__all__ = ["check_dct", "dct_add", "dct_encode"]

_FACTORS: list[Tensor] = []


def _layout(layout: DctLayout, n: int) -> tuple[int, int, int, int, int]:
    if not _FACTORS:
        _FACTORS.append(torch.tensor(dct_factors(), dtype=torch.float64))
    return (layout.kept, layout.columns, *layout.rest(n), _FACTORS[0].data_ptr())


def _parts(layout: DctLayout, n: int, positions: Tensor, values: Tensor) -> tuple[int, int]:
    (bytes_, first), (dtype, second) = layout.spec(n, values.dtype)
    return part_address(positions, bytes_, first), part_address(values, dtype, second)


def dct_encode(source: Source, layout: DctLayout, positions: Tensor, values: Tensor) -> None:
    """Select the coefficients of largest magnitude of each chunk; of equal ones the first."""
    x = source.x
    wide, n = native_dtype(x), x.numel()
    if wide is None:
        return reference.dct_encode(source, layout, positions, values)
    parts = _parts(layout, n, positions, values)
    kind = VALUE_KINDS[values.dtype]
    _native.dct_encode(wide, *inputs(source, n), *_layout(layout, n), *parts, kind, threads())


def check_dct(positions: Tensor, values: Tensor, d: int, layout: DctLayout, most: float) -> Fault:
    """Positions must increase within their chunks, and values be finite."""
    kind = VALUE_KINDS.get(values.dtype)
    if kind is None or not values.is_cpu:
        return reference.check_dct(positions, values, d, layout, most)
    parts = _parts(layout, d, positions, values)
    fault: int = _native.dct_check(d, *_layout(layout, d), *parts, kind, threads())
    return fault or check_values(values, most)


def dct_add(out: Tensor, payloads: Sequence[Sequence[Tensor]], layout: DctLayout, alpha: float = 1.0) -> None:
    """`out += alpha * decoded`, of the sum of several ranks' coefficients; all are checked first."""
    wide, n = native_dtype(out), out.numel()
    kinds = {values.dtype for _, values in payloads}
    kind = VALUE_KINDS.get(kinds.pop()) if len(kinds) == 1 else None
    if wide is None or kind is None:
        return reference.dct_add(out, payloads, layout, alpha)
    parts = [_parts(layout, n, positions, values) for positions, values in payloads]
    lists = [place for place, _ in parts], [value for _, value in parts]
    where = address(out, out.dtype, n)
    fault = _native.dct_add(wide, where, n, *_layout(layout, n), *lists, kind, alpha, threads())
    if fault:
        raise broken(_native.FAULTS[fault])
