"""The base class of memories, which own all per-parameter state, by parameter name.

A step is a transaction: `begin` encodes a gradient (and may already write state), then exactly one of
`commit` (every rank's part was finite) or `abort` (state is restored, up to rounding) follows.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Compressor, Payload, work_dtype
from ..errors import StateError
from ..kernels.limits import LARGE
from ..key import Key
from .norms import norm


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
    before: Mapping[str, Tensor] | None = None
    """A copy of the state before this step, if it is too large to be undone by arithmetic."""


Piece = tuple[Tensor, Key, Payload | None]
"""Input of `begin`: a gradient, its key and the destination of its payload."""


Role = Literal["residual", "momentum"]
"""What a slot means: a residual is what this rank has not sent yet, a momentum an average of its past gradients.

Both are proportional to the gradient. Slots with neither role are the same on all ranks.
"""


class NotFinite(Exception):
    """Raised by the `begin` of a memory that checks for NaN and infinity; its state is restored, up to rounding."""


class Memory:
    """Per-parameter state of a method. A subclass with `compensate` and `update` alone works everywhere.

    `compensate` must not change state: the step may still be aborted. `update` runs once the step is committed.
    """

    roles: ClassVar[Mapping[str, Role]] = {}
    """The slots that are a residual or a momentum: rescaled when a loss scale changes, and summed or averaged over ranks
    when the number of ranks changes. All other slots must be the same on all ranks."""

    checks_finite: ClassVar[bool] = False
    """Whether `begin` raises `NotFinite` in its own pass; otherwise gradients are checked in a separate pass."""

    dense_share: float = 1.0
    """The share of the largest number that averages of uncompressed parameters may reach (see `after_dense_`)."""

    _watched: frozenset[str] = frozenset()

    exact_average: ClassVar[bool] = False
    """Whether results must be the exact average of payloads: no communicator may compress them a second time."""

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
                self.roll_back(result)

    def commit_all(self, pendings: Sequence[Pending]) -> None:
        """`commit` for pieces of a bucket."""
        for pending in pendings:
            self.commit(pending)

    def commit(self, pending: Pending) -> None:
        """The exchange is complete and every rank's part was finite."""
        assert pending.compensated is not None
        self.update(pending.compensated, pending.key.name, pending.compressor, pending.payload, pending.ctx)

    def withhold(self, pending: Pending, compressor: Compressor, payload: Payload) -> None:
        """Send less than `begin` encoded: `payload`, of `compressor`, lacks some elements, which are left for later."""
        pending.compressor, pending.payload = compressor, payload

    def abort(self, pending: Pending) -> None:
        """The step is aborted; state must be restored to that before `begin`, up to rounding."""

    def roll_back(self, pending: Pending) -> None:
        """Restore the state before `begin`: up to rounding, or exactly after a step that was `watched`."""
        name, grad = pending.key.name, pending.grad
        if pending.before is not None:
            return self.restore(name, pending.before)
        self.abort(pending)
        if not grad.is_cpu and grad.numel() and type(self).abort is not Memory.abort:
            # The host does not know which gradients are large; undoing those leaves nothing but rounding errors.
            large = ~(grad.abs() < LARGE[grad.dtype])
            for slot in self.roles:
                if (held := self.state.get(name, {}).get(slot)) is not None and held.numel() == grad.numel():
                    held.masked_fill_(large.view_as(held), 0.0)

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

    def after_coded_(self, means: Sequence[Tensor], names: Sequence[str], commit: bool) -> None:
        """Turn, in place, the averages of parameters that were compressed into results (used for EF21's estimate).

        If not `commit`, the step is skipped because another parameter is not finite, and state stays as it is.
        """

    def after_dense_(self, means: Sequence[Tensor], names: Sequence[str]) -> None:
        """Modify, in place, the averages of parameters that were sent dense (used for DGC's momentum)."""

    # Large state (`memory.overflow`) ------------------------------------------------------------------

    def watches(self, name: str) -> bool:
        """Whether a parameter's state is so large that its next step must be watched."""
        return name in self._watched

    def observe(self, names: Iterable[str]) -> None:
        """Note which of these parameters have large state; only on the host, where asking costs no wait."""
        for name in names:
            slots = [tensor for tensor in self.state.get(name, {}).values() if tensor.is_cpu]
            if all(kernels.of(tensor).ordinary(tensor) for tensor in slots if tensor.is_floating_point()):
                self._watched -= {name}
            else:
                self._watched |= {name}

    def snapshot(self, name: str) -> dict[str, Tensor]:
        """A copy of a parameter's state."""
        return {slot: tensor.clone() for slot, tensor in self.state.get(name, {}).items()}

    def restore(self, name: str, before: Mapping[str, Tensor]) -> None:
        """Set a parameter's state to that of `snapshot`."""
        if not before:
            self.state.pop(name, None)
            return
        slots = self.state[name]
        for slot in [slot for slot in slots if slot not in before]:
            del slots[slot]
        for slot, tensor in before.items():
            slots[slot].copy_(tensor.view_as(slots[slot]))  # `held` may have given it the parameter's shape

    def magnitude(self, pending: Pending) -> float:
        """A bound of what this step leaves behind to be sent later, as a norm in units of the gradient."""
        name = pending.key.name
        if pending.compensated is not None:
            left = pending.compensated.clone()
            pending.compressor.residual_(left, pending.payload, pending.ctx)
            return norm(left)
        owed = self.residual(name)
        slots = self.state.get(name, {})
        held = [slots[slot] for slot, role in self.roles.items() if role == "momentum" and slot in slots]
        return max((norm(x) for x in [*held, *([] if owed is None else [owed])]), default=0.0)

    # Carrying over and saving -------------------------------------------------------------------------

    def residual(self, name: str) -> Tensor | None:
        """The residual of `name`, in units of the gradient; carried over when the method changes."""
        return None

    def rescale_(self, factor: float) -> None:
        """Multiply the state that is proportional to the gradient: the loss scale changed by `factor`."""
        for slots in self.state.values():
            for slot in self.roles:
                if slot in slots:
                    slots[slot].mul_(factor)

    def settled(self, slots: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A parameter's slots in a form that can be added up over ranks slot by slot."""
        return dict(slots)

    def absorbed(self, slots: Mapping[str, Tensor], owed: Tensor) -> dict[str, Tensor] | None:
        """A parameter's settled slots with `owed`, flat and in units of the gradient, added to the residual; None if there is
        no residual."""
        return None

    def without_residual(self, slots: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A parameter's slots of a rank that owes nothing."""
        return {
            slot: torch.zeros_like(tensor) if self.roles.get(slot) == "residual" else tensor
            for slot, tensor in self.settled(slots).items()
        }

    def slot(self, name: str, slot: str, like: Tensor) -> Tensor:
        """The state tensor `slot` of parameter `name`, created as zeros of `like`'s size on first use."""
        tensor = self.held(name, slot, like)
        if tensor is None:
            tensor = torch.zeros(like.shape, dtype=work_dtype(like.dtype), device=like.device)
            self.state.setdefault(name, {})[slot] = tensor
        return tensor

    def held(self, name: str, slot: str, like: Tensor) -> Tensor | None:
        """The state tensor `slot` of parameter `name`, on the device of `like`; None if there is none."""
        slots = self.state.get(name, {})
        tensor = slots.get(slot)
        if tensor is None:
            return None
        if tensor.numel() != like.numel():
            raise StateError(
                f"{type(self).__name__} holds {tensor.numel()} elements of {slot!r} for parameter {name!r}, "
                f"but its gradient has {like.numel()}: two parameters share a name, or a checkpoint of "
                "another model was loaded. Give every parameter its own name."
            )
        if tensor.device != like.device:  # loaded on another device: all slots follow the gradient
            slots.update({each: held.to(like.device) for each, held in slots.items()})
            tensor = slots[slot]
        if tensor.dim() == 1 != like.dim():  # saved flat, as slices of parameters are
            tensor = slots[slot] = tensor.view(like.shape)
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
        self.observe(self.state)

    def settings(self) -> dict[str, Any]:
        """The settings that all ranks must share."""
        return {k: v for k, v in sorted(vars(self).items()) if k != "state" and not k.startswith("_")}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.settings().items())})"
