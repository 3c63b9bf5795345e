"""Shared by PowerSGD and ACP-SGD: the matrix view, initial factors, orthonormalisation, P Qᵀ.

A gradient of shape (n, ...) is a matrix M of n rows; it is sent as P (n, r) and Q (m, r) with M ≈ P Qᵀ. Q is stored
transposed, as (r, m): products of a tall matrix with few columns run at memory speed in that layout only (M Q takes
four times, Mᵀ P six times as long with Q stored as (m, r)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..errors import PayloadError
from ..key import Key
from ..registry import Stages
from ..settings import number, whole
from .base import Compressor, Context, Payload, work_dtype, working

DEFAULT_RANK = 4
"""Loses no accuracy where rank 1 does (Vogels 2019, table 3), at nearly the same time: passes over M dominate."""


class LowRankCompressor(Compressor):
    """Base of the low-rank methods: an orthonormal factor times a projected one.

    Training uses the memory's `rounds`; `compress` is one power iteration on this rank alone, from an initial factor
    that depends only on the name.
    """

    sums = True
    multi_round = True
    layout_free = True

    def __init__(self, rank: int, min_compression_rate: float) -> None:
        super().__init__()
        self.rank = whole("rank", rank, "the number of columns of each factor; 1 to 4 is usual", least=1)
        why = "how many times smaller than the matrix its factors must be; 2 is usual"
        number("min_compression_rate", min_compression_rate, why, above=0)
        self.min_compression_rate = min_compression_rate

    # Which tensors ------------------------------------------------------------------------------------

    def takes(self, shape: Sequence[int]) -> bool:
        return self.fits(shape)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape has factors that are sufficiently smaller than the tensor."""
        if len(shape) < 2:
            return False
        n, m = matrix_shape(shape)
        small = self.rank * (n + m) * self.min_compression_rate < n * m
        return self.rank <= min(n, m) and small

    def payload_bytes_of(
        self, shape: Sequence[int], dtype: torch.dtype = torch.float32, step: int = 0
    ) -> int:
        """Bytes this rank passes to the all-reduce for a tensor of this shape at this step."""
        if not self.fits(shape):
            return math.prod(shape) * dtype.itemsize
        return self._factor_elements(*matrix_shape(shape), step) * work_dtype(dtype).itemsize

    def _factor_elements(self, n: int, m: int, step: int) -> int:
        """Elements of all factors sent in one step."""
        return self.rank * (n + m)

    # One rank alone -----------------------------------------------------------------------------------

    def compress(self, tensor: Tensor, name: str) -> tuple[Payload, Context]:
        key = Key(name)
        if not self.fits(tensor.shape):
            return [tensor.detach()], Context(tensor.shape, tensor.dtype, key)
        payload, _ = self.encode(working(tensor), key)
        return payload, Context(tensor.shape, tensor.dtype, key)

    def encode(self, tensor: Tensor, key: Key, out: Payload | None = None) -> tuple[Payload, Context]:
        ctx = Context(tensor.shape, tensor.dtype, key)
        if not self.fits(tensor.shape):
            return [tensor], ctx
        matrix = as_matrix(tensor)
        q = starting_factor(key, "q", self.rank, matrix.shape[1], matrix)
        (p,) = orthonormalise([torch.mm(q, matrix.t())])
        return [p.t(), torch.mm(p, matrix)], ctx

    def decompress(self, payload: Payload, ctx: Context) -> Tensor:
        out = torch.empty(ctx.shape, dtype=work_dtype(ctx.dtype), device=payload[0].device)
        self.combine_(out, [payload], ctx)
        return out.to(ctx.dtype)

    def residual_(self, tensor: Tensor, payload: Payload, ctx: Context) -> None:
        self._add_(tensor, payload, ctx, -1.0)

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        self._add_(out, payload, ctx, 1.0)

    def combine_(self, out: Tensor, payloads: Sequence[Payload], ctx: Context) -> None:
        first = check(payloads[0], ctx)
        if len(first) == 1:
            out.copy_(first[0].reshape(out.shape))
        elif out.dtype == first[0].dtype and out.is_contiguous():
            p, q = first
            kernels.of(out).expand_factors(p, q, out.view(p.shape[0], q.shape[1]))
        else:
            out.copy_(torch.mm(*first).view(out.shape))
        for payload in payloads[1:]:
            self.accumulate_(out, payload, ctx)
        self.finish_(out, len(payloads))

    @staticmethod
    def _add_(out: Tensor, payload: Payload, ctx: Context, sign: float) -> None:
        checked = check(payload, ctx)
        if len(checked) == 1:
            out.add_(checked[0].reshape(out.shape), alpha=sign)
        else:
            out.view(checked[0].shape[0], checked[1].shape[1]).addmm_(*checked, alpha=sign)


def from_step(start_iter: int = 0) -> Stages:
    """Plain averaging before step `start_iter`: early gradients change too fast for a low-rank approximation."""
    whole("start_iter", start_iter, "the first step that is compressed; 0 compresses all", least=0)
    return ((0, None), (start_iter, {})) if start_iter else ()


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a tensor viewed as a matrix: the first dimension by the rest."""
    return shape[0], math.prod(shape[1:])


def as_matrix(tensor: Tensor) -> Tensor:
    """A contiguous tensor viewed as a matrix, the first dimension by the rest, without a copy."""
    return tensor.view(matrix_shape(tensor.shape))


def check(payload: Payload, ctx: Context) -> Payload:
    """The payload, checked to decode to the context's shape."""
    numel = math.prod(ctx.shape)
    if len(payload) == 1 and payload[0].numel() == numel:
        return payload
    if len(payload) == 2 and len(ctx.shape) >= 2:
        (p, q), (n, m) = payload, matrix_shape(ctx.shape)
        if p.dim() == q.dim() == 2 and p.shape[0] == n and q.shape[1] == m and p.shape[1] == q.shape[0]:
            return payload
    raise PayloadError(
        f"the payload of {ctx.key.name!r} has tensors of shapes {[tuple(t.shape) for t in payload]}, which are no "
        f"factors of a tensor of shape {tuple(ctx.shape)}: ranks differ in rank or model. Use the same on all ranks."
    )


def orthonormalise(factors: Sequence[Tensor]) -> list[Tensor]:
    """Orthonormalise the rows of each (r, n) factor; equal shapes are batched in one call.

    Zero and dependent rows give arbitrary orthonormal ones.
    """
    groups: dict[Any, list[int]] = {}
    for place, factor in enumerate(factors):
        groups.setdefault((factor.shape, factor.dtype, factor.device), []).append(place)
    result: list[Tensor] = list(factors)
    for places in groups.values():
        batch = torch.stack([factors[place] for place in places])
        for place, rows in zip(places, kernels.of(batch).orthonormal_rows(batch).unbind()):
            result[place] = rows
    return result


def starting_factor(key: Key, stream: str, rank: int, length: int, like: Tensor) -> Tensor:
    """A random factor of shape (rank, length), the same on every rank, uniform in [-1/2, 1/2).

    Uniform rather than Gaussian: exact in every library, and it still spans a random subspace.
    """
    draws = kernels.of(like).uniforms(key.shared_word(stream), rank * length, like)
    return draws.sub_(0.5).view(rank, length)


def warm(factor: Tensor, key: Key, stream: str) -> Tensor:
    """A warm-start copy of an averaged factor of shape (r, m): rows scaled to largest entry 1, zero rows drawn again.

    Scaling prevents overflow and underflow of M Q (an averaged Q is as large as M). A row becomes zero when a gradient
    was zero or of lower rank; without a new draw it would stay zero.
    """
    rows = factor.clone(memory_format=torch.contiguous_format)
    whole = kernels.of(rows).unit_rows_(rows)
    if isinstance(whole, Tensor) or not whole:  # a device is not asked: it would have to be waited for
        fresh = starting_factor(key, f"{stream} anew", rows.shape[0], rows.shape[1], rows)
        rows = torch.where(rows.any(dim=1, keepdim=True), rows, fresh)
    return rows
