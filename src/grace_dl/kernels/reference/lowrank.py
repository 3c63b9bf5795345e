"""Low-rank kernels: products of a matrix M = e + g, which is never formed, with few vectors.

Factors are p (n, r) and q (r, m), Q transposed. Backends agree up to rounding: products have no fixed order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .basic import ordinary

__all__ = [
    "expand_factors",
    "orthonormal_rows",
    "project_columns",
    "project_rows",
    "settle_factors",
    "unit_rows_",
]


def project_rows(e: Tensor, g: Tensor, q: Tensor) -> tuple[Tensor, bool]:
    """(e + g) qᵀ, of shape (n, r); and, on the host, False if a magnitude of g or e + g reaches `limits.LARGE`."""
    return torch.mm(e, q.t()).addmm_(g, q.t()), _ordinary(e, g)


def project_columns(e: Tensor, g: Tensor, p: Tensor) -> tuple[Tensor, bool]:
    """pᵀ (e + g), of shape (r, m); and the same as `project_rows`."""
    return torch.mm(p.t(), e).addmm_(p.t(), g), _ordinary(e, g)


def _ordinary(e: Tensor, g: Tensor) -> bool:
    return not g.is_cpu or (ordinary(e) and ordinary(g))


def settle_factors(
    e: Tensor, g: Tensor, p: Tensor, q: Tensor, out: Tensor | None, p_mean: Tensor, q_mean: Tensor
) -> None:
    """e = (e + g) - p q; then out = p_mean q_mean, where `out` may be the memory of `g`."""
    e.add_(g).addmm_(p, q, alpha=-1)
    if out is not None:
        expand_factors(p_mean, q_mean, out)


def expand_factors(p: Tensor, q: Tensor, out: Tensor) -> None:
    """out = p q."""
    torch.mm(p, q, out=out)


def orthonormal_rows(batch: Tensor) -> Tensor:
    """Orthonormal rows with the span of the rows of each matrix (rank, n), rank <= n; may overwrite `batch`.

    Householder QR: zero or dependent rows give arbitrary orthonormal ones, never NaN. Uses one thread, because results
    for large matrices depend on the number of threads, and ranks with different numbers would diverge.
    """
    threads = torch.get_num_threads()
    if batch.is_cpu and threads > 1:
        torch.set_num_threads(1)
    try:
        return torch.linalg.qr(batch.mT)[0].mT.contiguous()
    finally:
        if batch.is_cpu and threads > 1:
            torch.set_num_threads(threads)


def unit_rows_(rows: Tensor) -> bool | Tensor:
    """Divide each row by its largest magnitude; returns False if a row is zero, which stays zero (on a device: a tensor)."""
    largest = rows.abs().amax(dim=1, keepdim=True)
    zero = largest == 0
    rows.div_(largest.masked_fill_(zero, 1))
    whole = ~zero.any()
    return bool(whole) if rows.is_cpu else whole
