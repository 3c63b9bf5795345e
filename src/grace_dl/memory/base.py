"""The base class of memories, which own all per-parameter state, by parameter name.

A step is a transaction: `begin` encodes a gradient (and may already write state), then exactly one of
`commit` (every rank's part was finite) or `abort` (state is restored, up to rounding) follows.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..compressor.base import Compressor, Payload, work_dtype
from ..errors import StateError
from ..key import Key


@dataclass(slots=True)
class Pending:
    """One parameter's part of a step in progress, between `begin` and `commit` or `abort`."""

    key: Key
    compressor: Compressor
    grad: Tensor
    """The local gradient; unchanged until the step is decided."""
    payload: Payload
    ctx: Any
    compensated: Tensor | None = None


Piece = tuple[Tensor, Key, Payload | None]
"""Input of `begin`: a gradient, its key and the destination of its payload."""


class NotFinite(Exception):
    """Raised by the `begin` of a memory that checks for NaN and infinity; its state is restored, up to rounding."""


class Memory:
    """Per-parameter state of a method. A subclass with `compensate` and `update` alone works everywhere.

    `compensate` must not change state: the step may still be aborted. `update` runs once the step is committed.
    """

    linear: ClassVar[tuple[str, ...]] = ()
    """State that is proportional to the gradient, and is rescaled when a loss scale changes."""

    checks_finite: ClassVar[bool] = False
    """Whether `begin` raises `NotFinite` in its own pass; otherwise gradients are checked in a separate pass."""

    def __init__(self) -> None:
        self.state: dict[str, dict[str, Tensor]] = {}

    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        """The gradient with what earlier steps did not send."""
        return tensor

    def update(self, tensor: Tensor, name: str, compressor: Compressor, payload: Payload, ctx: Any) -> None:
        """Record what of `tensor` (as compensated) was not sent."""

    # Transaction --------------------------------------------------------------------------------------

    def begin(self, grad: Tensor, key: Key, compressor: Compressor, out: Payload | None = None) -> Pending:
        """Encode `grad` (contiguous, in working dtype) with this memory's compensation."""
        x = self.compensate(grad, key.name)
        payload, ctx = compressor.encode(x, key, out)
        return Pending(key, compressor, grad, payload, ctx, compensated=x)

    def begin_all(self, pieces: Sequence[Piece], compressor: Compressor) -> list[Pending | Exception]:
        """`begin` for all pieces of a bucket; returns an error (such as `NotFinite`) in place of a piece that failed.

        Only for memories that check for NaN and infinity themselves.
        """
        results: list[Pending | Exception] = []
        try:
            for grad, key, out in pieces:
                try:
                    results.append(self.begin(grad, key, compressor, out))
                except Exception as error:
                    results.append(error)
        except BaseException:
            self.abort_all(results)
            raise
        return results

    def abort_all(self, results: Sequence[Pending | Exception]) -> None:
        """`abort` for the pieces of `begin_all`."""
        for result in results:
            if isinstance(result, Pending):
                self.abort(result)

    def commit_all(self, pendings: Sequence[Pending]) -> None:
        """`commit` for pieces of a bucket."""
        for pending in pendings:
            self.commit(pending)

    def commit(self, pending: Pending) -> None:
        """The exchange is complete and every rank's part was finite."""
        assert pending.compensated is not None
        self.update(pending.compensated, pending.key.name, pending.compressor, pending.payload, pending.ctx)

    def abort(self, pending: Pending) -> None:
        """The step is aborted; state must be restored to that before `begin`, up to rounding."""

    def conclude(self, pending: Pending, out: Tensor) -> None:
        """`commit`, and write the result to `out`, which may be the gradient's own memory; in one pass if possible."""
        self.commit(pending)
        pending.compressor.combine_(out, [pending.payload], pending.ctx)

    def rounds(
        self, items: Sequence[tuple[Tensor, Key]], compressor: Compressor
    ) -> Generator[list[Tensor], list[Tensor], list[Pending]]:
        """The exchange of a `multi_round` method over (gradient, key) pairs of one bucket.

        Yields tensors to be averaged over all ranks, is sent their averages, and finally returns one `Pending` per item,
        whose payload `compressor.combine_` turns into the result. The first yield is one tensor per item, non-finite
        if the gradient is. No gradient is overwritten before `conclude`, `commit` or `abort`. If closed early, it
        rolls back what it wrote.
        """
        raise NotImplementedError(f"{type(self).__name__} serves no method of several rounds")

    def rounds_per_step(self, compressor: Compressor) -> int:
        """How many times `rounds` yields."""
        return 1

    def second_phase(self) -> Memory:
        """The memory for slices that their owner encodes again in an all-to-all."""
        from .none import NoneMemory

        return NoneMemory()

    def after_dense_(self, means: Sequence[Tensor], names: Sequence[str]) -> None:
        """Modify, in place, the averages of parameters that were sent dense (used for DGC's momentum)."""

    # Carrying over and saving -------------------------------------------------------------------------

    def residual(self, name: str) -> Tensor | None:
        """The residual of `name`, in units of the gradient; carried over when the method changes."""
        return None

    def rescale_(self, factor: float) -> None:
        """Multiply the state that is proportional to the gradient: the loss scale changed by `factor`."""
        for slots in self.state.values():
            for slot in self.linear:
                if slot in slots:
                    slots[slot].mul_(factor)

    def slot(self, name: str, slot: str, like: Tensor) -> Tensor:
        """The state tensor `slot` of parameter `name`, created as zeros of `like`'s size on first use."""
        slots = self.state.setdefault(name, {})
        tensor = slots.get(slot)
        if tensor is None:
            tensor = torch.zeros(like.shape, dtype=work_dtype(like.dtype), device=like.device)
            slots[slot] = tensor
        elif tensor.numel() != like.numel():
            raise StateError(
                f"{type(self).__name__} holds {tensor.numel()} elements of {slot!r} for parameter {name!r}, "
                f"but its gradient has {like.numel()}: two parameters share a name, or a checkpoint of "
                "another model was loaded. Give every parameter its own name."
            )
        return tensor

    def keys_of(self, name: str) -> list[str]:
        """The keys of a parameter's state: its name, or the names of its slices (see `Alltoall`)."""
        own = re.compile(rf"{re.escape(name)}(#\d+)?'?")
        return [key for key in self.state if own.fullmatch(key)]

    def state_dict(self) -> dict[str, Any]:
        """A copy of all state, by parameter name and slot."""
        return {n: {s: t.detach().clone() for s, t in slots.items()} for n, slots in self.state.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Replace all state by a copy of `state`."""
        self.state = {n: {s: t.detach().clone() for s, t in slots.items()} for n, slots in state.items()}

    def settings(self) -> dict[str, Any]:
        """The settings that all ranks must share."""
        return {k: v for k, v in sorted(vars(self).items()) if k != "state" and not k.startswith("_")}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.settings().items())})"
