"""Low-rank kernels: products of a matrix M = e + g, which is never formed, with few vectors.

Factors are p (n, r) and q (r, m), Q transposed. Backends agree to rounding: matrix products have no fixed order here.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["expand_factors", "project_columns", "project_rows", "settle_factors"]


def project_rows(e: Tensor, g: Tensor, q: Tensor) -> Tensor:
    """(e + g) qᵀ, of shape (n, r)."""
    return torch.mm(e, q.t()).addmm_(g, q.t())


def project_columns(e: Tensor, g: Tensor, p: Tensor) -> Tensor:
    """pᵀ (e + g), of shape (r, m)."""
    return torch.mm(p.t(), e).addmm_(p.t(), g)


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
