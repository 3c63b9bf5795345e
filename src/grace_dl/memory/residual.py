"""Error feedback: the compression error is added to the next gradient."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Compressor, Payload
from ..kernels import Leave, Source
from ..key import Key
from ..settings import number
from .base import Memory, Pending


class ResidualMemory(Memory):
    """x = beta * e + gamma * g; afterwards e = x - sent.

    beta: weight of the residual; 1 is plain error feedback, less forgets.
    gamma: weight of the gradient.

    The residual is written while encoding, in the same pass over memory; `abort` rolls it back. If a method defers
    this (`Compressor.deferred`), slot `e` holds x until the next step, and `owed` what that step subtracts.
    """

    roles = {"e": "residual", "owed": "residual"}

    def __init__(self, beta: float = 1.0, gamma: float = 1.0) -> None:
        super().__init__()
        self.beta = number("beta", beta, "1 is plain error feedback", above=0)
        self.gamma = number("gamma", gamma, "1 is plain error feedback", above=0)

    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        self.slot(name, "e", tensor)
        return self.beta * self._whole(name).view_as(tensor) + self.gamma * tensor

    def update(
        self, tensor: Tensor, name: str, compressor: Compressor, payload: Payload, ctx: object
    ) -> None:
        e = self.slot(name, "e", tensor)
        self.state[name].pop("owed", None)
        e.copy_(tensor)
        compressor.residual_(e, payload, ctx)

    def begin(self, grad: Tensor, key: Key, compressor: Compressor, out: Payload | None = None) -> Pending:
        e = self.slot(key.name, "e", grad)
        slots = self.state[key.name]
        if compressor.deferred:
            if "owed" not in slots:
                slots["owed"] = torch.zeros(compressor.deferred, dtype=e.dtype, device=e.device)
        elif "owed" in slots:  # the state of another method was loaded
            e.copy_(self._whole(key.name))
            del slots["owed"]
        leave: Leave = "deferred" if compressor.deferred else "residual"
        source = Source(e, grad, self.beta, self.gamma, leave, slots.get("owed"))
        payload, ctx = compressor.encode_from(source, key, out)
        return Pending(key, compressor, grad, payload, ctx)

    def withhold(self, pending: Pending, compressor: Compressor, payload: Payload) -> None:
        e = self.state[pending.key.name]["e"]
        pending.compressor.accumulate_(e, pending.payload, pending.ctx)
        compressor.residual_(e, payload, pending.ctx)
        super().withhold(pending, compressor, payload)

    def commit(self, pending: Pending) -> None:
        """A no-op: `begin` wrote the residual."""

    def abort(self, pending: Pending) -> None:
        slots = self.state[pending.key.name]
        e = slots["e"]
        if "owed" in slots:
            slots["owed"].zero_()
        else:
            # e + sent, computed by `residual_` with this rank's own payload as -(-e - sent).
            pending.compressor.residual_(e.neg_(), pending.payload, pending.ctx)
            e.neg_()
        e.sub_(pending.grad.view_as(e), alpha=self.gamma).div_(self.beta)

    def second_phase(self) -> Memory:
        return type(self)()

    def residual(self, name: str) -> Tensor | None:
        return self._whole(name) * (self.beta / self.gamma) if name in self.state else None

    def settled(self, slots: Mapping[str, Tensor]) -> dict[str, Tensor]:
        kept = {slot: tensor for slot, tensor in slots.items() if slot != "owed"}
        return {**kept, "e": _whole(slots)}

    def absorbed(self, slots: Mapping[str, Tensor], owed: Tensor) -> dict[str, Tensor]:
        e = slots["e"]
        return {**slots, "e": e + owed.view_as(e) * (self.gamma / self.beta)}

    def _whole(self, name: str) -> Tensor:
        return _whole(self.state[name])


def _whole(slots: Mapping[str, Tensor]) -> Tensor:
    """The residual, with the deferred part subtracted."""
    e = slots["e"]
    return kernels.of(e).settled(e, slots["owed"]) if "owed" in slots else e
