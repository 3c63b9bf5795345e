"""What the memories of the low-rank methods share: the residual and when it is written."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from ..compressor.base import Compressor, Context, Payload
from ..compressor.lowrank import LowRankCompressor, matrix_shape, starting_factor
from ..errors import StateError
from ..key import Key
from .base import Memory, Pending

Rounds = Generator[list[Tensor], list[Tensor], list[Pending]]


@dataclass(slots=True)
class LowRankPending(Pending):
    """A matrix between `rounds` and `commit` or `abort`."""

    sent: Payload = field(default_factory=list)
    """Factors whose product leaves the residual."""
    factors: dict[str, Tensor] = field(default_factory=dict)
    """Warm factors to keep, by slot."""
    finite: bool = True


class LowRankMemory(Memory):
    """Error feedback for matrices, formed in place: e += gradient first, e -= P Qᵀ on commit.

    Slots: `e`, shaped as the parameter, and the warm factors `p` and `q`, stored as (r, n) and (r, m).
    """

    linear = ("e",)

    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        return self.slot(name, "e", tensor).view_as(tensor) + tensor

    def update(self, tensor: Tensor, name: str, compressor: Compressor, payload: Payload, ctx: Any) -> None:
        e = self.slot(name, "e", tensor)
        e.copy_(tensor.view_as(e))
        compressor.residual_(e, payload, ctx)

    def rounds(self, items: Sequence[tuple[Tensor, Key]], compressor: Compressor) -> Rounds:
        method = cast(LowRankCompressor, compressor)
        fits = [method.fits(grad.shape) for grad, _ in items]
        matrices = [item for item, fit in zip(items, fits) if fit]
        # What has no factors is averaged as it is, along with the first round.
        dense = [grad for (grad, _), fit in zip(items, fits) if not fit]
        pending: list[Pending] = []
        averages: list[Tensor] = []
        if matrices:
            begun: list[tuple[Tensor, Tensor]] = []
            try:
                inner = self._factor_rounds(matrices, self._compensate(matrices, begun), method)
                request = next(inner)
                answer = yield request + dense
                averages = answer[len(request) :]
                answer = answer[: len(request)]
                while True:
                    request = inner.send(answer)
                    answer = yield request
            except StopIteration as end:
                pending = end.value
            except BaseException:
                # An error here or elsewhere ends the exchange (also by closing this generator): nothing is kept.
                for e, grad in begun:
                    e.sub_(grad)
                raise
        elif dense:
            averages = yield dense
        factored, plain = iter(pending), iter(averages)
        return [
            next(factored)
            if fit
            else LowRankPending(key, method, grad, [next(plain)], Context(grad.shape, grad.dtype, key))
            for (grad, key), fit in zip(items, fits)
        ]

    def _factor_rounds(
        self, items: Sequence[tuple[Tensor, Key]], matrices: Sequence[Tensor], method: LowRankCompressor
    ) -> Rounds:
        """The rounds of gradients that are all matrices; `matrices` are residual plus gradient."""
        raise NotImplementedError

    def _compensate(
        self, items: Sequence[tuple[Tensor, Key]], begun: list[tuple[Tensor, Tensor]]
    ) -> list[Tensor]:
        """e += gradient, in the memory's own buffers, noted in `begun`; returns the sums as matrices."""
        for grad, key in items:
            e = self.slot(key.name, "e", grad)
            grad = grad.view_as(e)
            begun.append((e.add_(grad), grad))
        return [e.view(matrix_shape(grad.shape)) for (e, _), (grad, _) in zip(begun, items)]

    def factor(self, key: Key, slot: str, rank: int, length: int, like: Tensor) -> Tensor:
        """The warm factor in `slot`, or the random one to start from; state is not changed."""
        kept = self.state.get(key.name, {}).get(slot)
        if kept is not None and kept.shape[1] != length:
            raise StateError(
                f"{type(self).__name__} holds a factor {slot!r} of length {kept.shape[1]} for parameter "
                f"{key.name!r}, whose matrix wants {length}: two parameters share a name, or a checkpoint of "
                "another model was loaded. Give every parameter its own name."
            )
        # Another rank than before (settings changed between steps) starts afresh, alike on all ranks.
        if kept is None or kept.shape[0] != rank:
            return starting_factor(key, slot, rank, length, like)
        return kept

    def commit(self, pending: Pending) -> None:
        if not isinstance(pending, LowRankPending):
            super().commit(pending)
            return
        if not pending.sent:
            return
        if not pending.finite:
            self.abort(pending)
            return
        slots = self.state[pending.key.name]
        pending.compressor.residual_(slots["e"], pending.sent, pending.ctx)
        for slot, factor in pending.factors.items():
            # A copy: the average may be a view into a frame that is used again.
            slots[slot] = factor.clone(memory_format=torch.contiguous_format)

    def abort(self, pending: Pending) -> None:
        if isinstance(pending, LowRankPending) and pending.sent:
            e = self.state[pending.key.name]["e"]
            e.sub_(pending.grad.view_as(e))

    def residual(self, name: str) -> Tensor | None:
        return self.state.get(name, {}).get("e")


def finite(factors: Sequence[Tensor]) -> list[bool]:
    """For each averaged factor, whether all of it is finite: products overflow sooner than the gradient."""
    return torch.stack([torch.linalg.vector_norm(f, ord=torch.inf) for f in factors]).isfinite().tolist()
