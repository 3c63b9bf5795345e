"""Low-rank kernels for ranks up to `max_rank`; above it the products are compute-bound, and torch's are used."""

from __future__ import annotations

import torch
from torch import Tensor

import grace_dl._native as _native

from ..limits import LARGE
from ..reference import lowrank as reference
from .pointer import address, native_dtype, threads

__all__ = [
    "expand_factors",
    "orthonormal_rows",
    "project_columns",
    "project_rows",
    "settle_factors",
    "unit_rows_",
]


def _wide(x: Tensor, rank: int) -> bool | None:
    return native_dtype(x) if 0 < rank <= _native.max_rank else None


def project_rows(e: Tensor, g: Tensor, q: Tensor) -> tuple[Tensor, bool]:
    (n, m), rank = e.shape, q.shape[0]
    wide = _wide(e, rank)
    if wide is None:
        return reference.project_rows(e, g, q)
    q = q.contiguous()
    p = torch.empty(n, rank, dtype=e.dtype)
    matrix = [address(x, e.dtype, n * m) for x in (e, g)]
    factors = address(q, e.dtype, rank * m), p.data_ptr()
    return p, _native.project_rows(wide, *matrix, *factors, n, m, rank, LARGE[e.dtype] ** 2, threads())


def project_columns(e: Tensor, g: Tensor, p: Tensor) -> tuple[Tensor, bool]:
    (n, m), rank = e.shape, p.shape[1]
    wide = _wide(e, rank)
    if wide is None:
        return reference.project_columns(e, g, p)
    p = p.contiguous()
    q = torch.empty(rank, m, dtype=e.dtype)
    matrix = [address(x, e.dtype, n * m) for x in (e, g)]
    factors = address(p, e.dtype, n * rank), q.data_ptr()
    return q, _native.project_columns(wide, *matrix, *factors, n, m, rank, LARGE[e.dtype] ** 2, threads())


def settle_factors(
    e: Tensor, g: Tensor, p: Tensor, q: Tensor, out: Tensor | None, p_mean: Tensor, q_mean: Tensor
) -> None:
    (n, m), rank = e.shape, q.shape[0]
    wide = _wide(e, rank)
    if wide is None:
        return reference.settle_factors(e, g, p, q, out, p_mean, q_mean)
    # If the two products share a factor, which the kernel detects by its address, it is used once.
    local = (p.contiguous(), q.contiguous())
    mean = (
        local[0] if p_mean is p else p_mean.contiguous(),
        local[1] if q_mean is q else q_mean.contiguous(),
    )
    factors = [address(x, e.dtype, length * rank) for x, length in zip((*local, *mean), (n, m, n, m))]
    _native.settle_factors(
        wide,
        address(e, e.dtype, n * m),
        address(g, e.dtype, n * m),
        *factors[:2],
        0 if out is None else address(out, e.dtype, n * m),
        *factors[2:],
        n,
        m,
        rank,
        threads(),
    )


def expand_factors(p: Tensor, q: Tensor, out: Tensor) -> None:
    (n, rank), m = p.shape, q.shape[1]
    wide = _wide(out, rank)
    if wide is None or p.dtype != out.dtype:
        return reference.expand_factors(p, q, out)
    p, q = p.contiguous(), q.contiguous()
    factors = (address(p, out.dtype, n * rank), address(q, out.dtype, rank * m))
    _native.settle_factors(
        wide, 0, 0, *factors, address(out, out.dtype, n * m), *factors, n, m, rank, threads()
    )


def orthonormal_rows(batch: Tensor) -> Tensor:
    count, rank, n = batch.shape
    wide = _wide(batch, rank)
    if wide is None or rank > n:
        return reference.orthonormal_rows(batch)
    _native.orthonormal_rows(wide, address(batch, batch.dtype, count * rank * n), count, rank, n, threads())
    return batch


def unit_rows_(rows: Tensor) -> bool | Tensor:
    wide = native_dtype(rows)
    if wide is None:
        return reference.unit_rows_(rows)
    count, n = rows.shape
    return bool(_native.unit_rows(wide, address(rows, rows.dtype, count * n), count, n))
