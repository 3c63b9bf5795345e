"""Shared by the memories of the low-rank methods: the residual, and when it is written."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Compressor, Context, Payload
from ..compressor.lowrank import LowRankCompressor, matrix_shape, starting_factor, warm
from ..errors import StateError, UnsupportedError
from ..key import Key
from . import overflow
from .base import Memory, Pending
from .norms import most, norm

Rounds = Generator[list[Tensor], list[Tensor], list[Pending]]


@dataclass(slots=True)
class Matrix:
    """A gradient and its residual, of the same (n, m); what is compressed is their sum."""

    grad: Tensor
    e: Tensor
    key: Key
    ordinary: bool = True
    """False if an element of the last product's matrix was large, or many together were."""

    def times(self, q: Tensor) -> Tensor:
        """(e + grad) Qᵀ for Q of shape (r, m): the factor P, of shape (n, r)."""
        p, self.ordinary = kernels.of(self.e).project_rows(self.e, self.grad, q)
        return p

    def transposed_times(self, p: Tensor) -> Tensor:
        """Pᵀ (e + grad) for P of shape (n, r): the factor Q, of shape (r, m)."""
        q, self.ordinary = kernels.of(self.e).project_columns(self.e, self.grad, p)
        return q


class LowRankPending(Pending):
    """A matrix between `rounds` and `conclude`, `commit` or `abort`.

    `payload` are the factors of the result, `sent` those whose product is subtracted from the residual, `factors` the
    warm-start factors to store, by slot.
    """

    __slots__ = ("factors", "matrix", "sent")

    def __init__(
        self,
        matrix: Matrix,
        method: LowRankCompressor,
        shape: torch.Size,
        payload: Payload,
        sent: Payload,
        factors: dict[str, Tensor],
    ) -> None:
        ctx = Context(shape, matrix.grad.dtype, matrix.key)
        super().__init__(matrix.key, method, matrix.grad, payload, ctx)
        self.matrix = matrix
        self.sent = sent
        self.factors = factors


class LowRankMemory(Memory):
    """Error feedback for matrices: P and Q are computed from e + gradient, and e becomes e + gradient - P Qᵀ on commit.

    The sum is computed inside the products, and nothing is written before `commit`. In the same pass over memory the
    result may overwrite the gradient. Slots: `e`, shaped like the parameter, and the warm-start factors `p` and `q`,
    stored as (r, n) and (r, m).
    """

    roles = {"e": "residual"}

    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        return self.slot(name, "e", tensor).view_as(tensor) + tensor

    def update(self, tensor: Tensor, name: str, compressor: Compressor, payload: Payload, ctx: Any) -> None:
        e = self.slot(name, "e", tensor)
        e.copy_(tensor.view_as(e))
        compressor.residual_(e, payload, ctx)

    def matrices(self, items: Sequence[tuple[Tensor, Key]], method: LowRankCompressor) -> list[Matrix]:
        """The gradients of a bucket with their residuals."""
        result = []
        for grad, key in items:
            if not method.fits(grad.shape):
                raise UnsupportedError(
                    f"the gradient of {key.name!r}, of shape {tuple(grad.shape)}, has no factors of rank {method.rank} "
                    "that are smaller than itself; average it as it is (`takes` tells)."
                )
            shape = matrix_shape(grad.shape)
            result.append(Matrix(grad.view(shape), self.slot(key.name, "e", grad).view(shape), key))
        return result

    def checked(self, matrix: Matrix, multiply: Callable[[Tensor], Tensor], other: Tensor) -> Tensor:
        """The first factor of a step, `multiply(other)`; NaN if the gradient cannot be added to what is owed."""
        factor = multiply(other)
        if matrix.ordinary:
            return factor
        kernel, e, grad = kernels.of(matrix.e), matrix.e, matrix.grad
        if not kernel.ordinary(grad):
            # The norm bounds all factors, and what they leave in the residual.
            if not norm(e + grad) <= most(e.dtype, matrix.key.workers):
                factor.fill_(torch.nan)
            return factor
        if kernel.all_finite(factor):
            return factor
        overflow.drop(self, matrix.key.name)
        return multiply(other)

    def factor(self, matrix: Matrix, slot: str, rank: int) -> Tensor:
        """The warm-start factor in `slot`, or a random initial one; state is not changed."""
        key, length = matrix.key, matrix.e.shape[0 if slot == "p" else 1]
        kept = self.state.get(key.name, {}).get(slot)
        if kept is not None and kept.shape[1] != length:
            raise StateError(
                f"{type(self).__name__} holds a factor {slot!r} of length {kept.shape[1]} for parameter "
                f"{key.name!r}, whose matrix wants {length}: two parameters share a name, or a checkpoint of "
                "another model was loaded. Give every parameter its own name."
            )
        # If the rank setting has changed, start again from a random factor, the same on all ranks.
        if kept is None or kept.shape[0] != rank:
            return starting_factor(key, slot, rank, length, matrix.e)
        return kept

    def conclude(self, pending: Pending, out: Tensor) -> None:
        if isinstance(pending, LowRankPending) and pending.payload[0].dtype == out.dtype:
            self._settle(pending, out.view(pending.matrix.e.shape))
        else:
            super().conclude(pending, out)

    def commit(self, pending: Pending) -> None:
        if isinstance(pending, LowRankPending):
            self._settle(pending, None)
        else:
            super().commit(pending)

    def _settle(self, pending: LowRankPending, out: Tensor | None) -> None:
        matrix, (p, q), (p_mean, q_mean) = pending.matrix, pending.sent, pending.payload
        kernels.of(matrix.e).settle_factors(matrix.e, matrix.grad, p, q, out, p_mean, q_mean)
        for slot, factor in pending.factors.items():
            # A copy: the average is a view into the frame of the whole bucket.
            self.state[pending.key.name][slot] = warm(factor, pending.key, slot)

    def residual(self, name: str) -> Tensor | None:
        return self.state.get(name, {}).get("e")
