"""EF21: ranks send the compressed change of their gradient, and all keep the same running estimate of the average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..compressor.base import Compressor, Payload
from ..kernels import Source
from ..key import Key
from ..settings import number
from .base import Memory, Pending
from .norms import norm


@dataclass(slots=True)
class Ef21Pending(Pending):
    """A step in progress, with the new value of v."""

    v: Tensor | None = None


class Ef21Memory(Memory):
    """c = C(v - h), h = h + c on each rank; the result is g = g + mean of c (Richtárik 2021, algorithm 2).

    eta: the weight of the gradient in v = (1 - eta) v + eta * gradient. 1 is plain EF21, for exact gradients or
        large batches; less, usually 0.1, is EF21-SGDM (Fatkhullin 2023), for stochastic gradients. The optimizer then needs no
        momentum.

    Slots: v; h, what the group knows of this rank; g, the average of h over ranks, the same everywhere. A result lacks the average
    of v - h, which is what the memory owes. It is not added to later gradients: the difference is sent instead, and goes
    to zero as v settles. `begin` writes nothing.
    """

    roles = {"h": "momentum", "v": "momentum", "g": "momentum"}
    exact_average = True  # g must remain the average of h

    def __init__(self, eta: float = 1.0) -> None:
        super().__init__()
        why = "the weight of a new gradient; 1 is EF21, 0.1 is usual for EF21-SGDM"
        self.eta = number("eta", eta, why, above=0, most=1)

    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        return self._averaged(tensor, name) - self.slot(name, "h", tensor).view_as(tensor)

    def update(self, tensor: Tensor, name: str, compressor: Compressor, payload: Payload, ctx: Any) -> None:
        h = self.slot(name, "h", tensor)
        self.state[name]["v"] = tensor.view_as(h) + h
        _add_sent(h, compressor, payload, ctx)

    def begin(self, grad: Tensor, key: Key, compressor: Compressor, out: Payload | None = None) -> Pending:
        h, v = self.slot(key.name, "h", grad), self._averaged(grad, key.name)
        payload, ctx = compressor.encode_from(Source(h, v, -1.0, 1.0), key, out)
        return Ef21Pending(key, compressor, grad, payload, ctx, v=v)

    def commit(self, pending: Pending) -> None:
        assert isinstance(pending, Ef21Pending) and pending.v is not None
        name = pending.key.name
        self.slot(name, "v", pending.grad).copy_(pending.v)
        _add_sent(self.state[name]["h"], pending.compressor, pending.payload, pending.ctx)

    def magnitude(self, pending: Pending) -> float:
        assert isinstance(pending, Ef21Pending) and pending.v is not None
        h = self.state[pending.key.name]["h"].clone()
        _add_sent(h, pending.compressor, pending.payload, pending.ctx)
        return max(norm(pending.v), norm(h))

    def _averaged(self, grad: Tensor, name: str) -> Tensor:
        """The new v; the first is the gradient (Fatkhullin 2023, section 3)."""
        v = self.held(name, "v", grad)
        return grad if self.eta == 1 or v is None else v.view_as(grad) * (1 - self.eta) + grad * self.eta

    def after_coded_(self, means: Sequence[Tensor], names: Sequence[str], commit: bool) -> None:
        for mean, name in zip(means, names):
            g = self.slot(name, "g", mean).view(mean.shape)
            if commit:
                mean.copy_(g.add_(mean))
            else:
                mean.add_(g)

    def after_dense_(self, means: Sequence[Tensor], names: Sequence[str]) -> None:
        """Parameters that were sent dense have the same momentum."""
        if self.eta == 1:
            return
        for mean, name in zip(means, names):
            mean.copy_(self._averaged(mean, name))
            self.slot(name, "v", mean).copy_(mean)

    def residual(self, name: str) -> Tensor | None:
        slots = self.state.get(name, {})
        return slots["v"] - slots["h"].view_as(slots["v"]) if "h" in slots and "v" in slots else None

    def settled(self, slots: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # Ranks may be gone, and the average of h must be g again: h becomes g, and what is owed stays.
        if "h" not in slots or "g" not in slots:
            return dict(slots)
        g = slots["g"].view_as(slots["h"])
        return {"h": g.clone(), "v": slots["v"].view_as(g) - slots["h"] + g, "g": g}

    def without_residual(self, slots: Mapping[str, Tensor]) -> dict[str, Tensor]:
        settled = self.settled(slots)
        return {**settled, "v": settled["g"].clone()} if "g" in settled else settled


def _add_sent(h: Tensor, compressor: Compressor, payload: Payload, ctx: Any) -> None:
    """h += what this rank has sent."""
    if compressor.divides_first:  # the payload decodes to this rank's share of the average
        compressor.residual_(h.neg_(), payload, ctx)
        h.neg_()
    else:
        compressor.accumulate_(h, payload, ctx)
