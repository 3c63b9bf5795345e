"""The momentum of Signum."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..compressor.base import Compressor, Payload
from ..kernels import Source
from ..key import Key
from ..methods.signum import MOMENTUM, checked_momentum
from .base import Memory, Pending


class SignumMemory(Memory):
    """m = momentum * m + (1 - momentum) * g; what is sent is an encoding of m (Bernstein et al. 2018, algorithm 2).

    The momentum is written while encoding, in the same pass over memory; `abort` rolls it back.
    """

    roles = {"m": "momentum"}

    def __init__(self, momentum: float = MOMENTUM) -> None:
        super().__init__()
        self.momentum = checked_momentum(momentum)

    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        m = self.slot(name, "m", tensor).view_as(tensor)
        return self.momentum * m + (1 - self.momentum) * tensor

    def update(self, tensor: Tensor, name: str, compressor: Compressor, payload: Payload, ctx: Any) -> None:
        self.slot(name, "m", tensor).copy_(tensor)

    def begin(self, grad: Tensor, key: Key, compressor: Compressor, out: Payload | None = None) -> Pending:
        m = self.slot(key.name, "m", grad)
        source = Source(m, grad, self.momentum, 1 - self.momentum, "compensated")
        payload, ctx = compressor.encode_from(source, key, out)
        return Pending(key, compressor, grad, payload, ctx)

    def commit(self, pending: Pending) -> None:
        """A no-op: `begin` wrote the momentum."""

    def abort(self, pending: Pending) -> None:
        m = self.state[pending.key.name]["m"]
        m.sub_(pending.grad.view_as(m), alpha=1 - self.momentum).div_(self.momentum)
