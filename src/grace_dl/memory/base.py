"""What a memory is: the owner of all per-parameter state, by parameter name.

A step is a transaction: `begin` encodes a gradient (and may already write state), then exactly one of
`commit` (every rank's part was finite) or `abort` (state comes out as before, to rounding) follows.
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
    """One parameter's part of a step under way, between `begin` and `commit` or `abort`."""

    key: Key
    compressor: Compressor
    grad: Tensor
    """The local gradient; unchanged until the step is decided."""
    payload: Payload
    ctx: Any
    compensated: Tensor | None = None


Piece = tuple[Tensor, Key, Payload | None]
"""What `begin` takes: a gradient, its key, and where its payload goes."""


class NotFinite(Exception):
    """Raised by the `begin` of a memory that looks for NaN and infinity itself; its state is as it was, to rounding."""


class Memory:
    """Per-parameter state of a method. A subclass with `compensate` and `update` alone works everywhere.

    `compensate` must not change state: a step may still be given up after it. `update` runs once the step is decided.
    """

    linear: ClassVar[tuple[str, ...]] = ()
    """State that is proportional to the gradient, and is rescaled when a loss scale changes."""

    checks_finite: ClassVar[bool] = False
    """Whether `begin` raises `NotFinite` by itself, in the pass it makes anyway; else gradients are read once more."""

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
        """`begin` for all pieces of a bucket; in place of one that failed, its error (`NotFinite`, too).

        Asked of memories that look for NaN and infinity themselves.
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
        """`abort` for what `begin_all` began."""
        for result in results:
            if isinstance(result, Pending):
                self.abort(result)

    def commit_all(self, pendings: Sequence[Pending]) -> None:
        """`commit` for pieces of a bucket."""
        for pending in pendings:
            self.commit(pending)

    def commit(self, pending: Pending) -> None:
        """The exchange is over and every rank's part was finite."""
        assert pending.compensated is not None
        self.update(pending.compensated, pending.key.name, pending.compressor, pending.payload, pending.ctx)

    def abort(self, pending: Pending) -> None:
        """The step is given up; state must come out as it was before `begin`, to rounding."""

    def conclude(self, pending: Pending, out: Tensor) -> None:
        """`commit`, and the result into `out` (maybe the gradient's own memory): one pass, where a method can."""
        self.commit(pending)
        pending.compressor.combine_(out, [pending.payload], pending.ctx)

    def rounds(
        self, items: Sequence[tuple[Tensor, Key]], compressor: Compressor
    ) -> Generator[list[Tensor], list[Tensor], list[Pending]]:
        """The exchange of a `multi_round` method over (gradient, key) pairs of one bucket.

        Yields tensors to be averaged over all ranks, is sent their averages, and in the end returns one `Pending` per
        item whose payload `compressor.combine_` turns into the result. The first yield is one tensor per item, not
        finite where the gradient is not. No gradient is overwritten before `conclude`, `commit` or `abort`. Closed
        before its end, it takes back what it wrote.
        """
        raise NotImplementedError(f"{type(self).__name__} serves no method of several rounds")

    def rounds_per_step(self, compressor: Compressor) -> int:
        """How many times `rounds` yields."""
        return 1

    def second_phase(self) -> Memory:
        """The memory for what an all-to-all's owner of a slice re-encodes."""
        from .none import NoneMemory

        return NoneMemory()

    def after_dense_(self, means: Sequence[Tensor], names: Sequence[str]) -> None:
        """Change, in place, the averages of parameters that travelled dense (DGC's momentum lives here)."""

    # Carrying over and saving -------------------------------------------------------------------------

    def residual(self, name: str) -> Tensor | None:
        """What is still owed for `name`, in units of the gradient; handed on when the method changes."""
        return None

    def rescale_(self, factor: float) -> None:
        """Multiply the state that is proportional to the gradient: the loss scale changed by `factor`."""
        for slots in self.state.values():
            for slot in self.linear:
                if slot in slots:
                    slots[slot].mul_(factor)

    def slot(self, name: str, slot: str, like: Tensor) -> Tensor:
        """The state tensor `slot` of parameter `name`, zeros of `like`'s size at first use."""
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
        """Under which names state of a parameter is kept: its own, or those of its slices (see `Alltoall`)."""
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
