"""LoCo: error feedback with an averaged error, kept in 8 bits (Xie 2024, arXiv:2407.04480)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Compressor, Payload, work_dtype
from ..kernels import Source
from ..kernels.wire import blocks
from ..key import Key
from ..settings import number, whole
from .base import Memory, Pending
from .norms import norm

BLOCK, LEVELS, BITS = 256, 127, 8
"""How the error is kept: as `int8` codes a gradient."""


@dataclass(slots=True)
class LocoPending(Pending):
    """A step in progress, with the slots it will leave."""

    slots: Mapping[str, Tensor] | None = None


class LocoMemory(Memory):
    """h = g + e is sent as ĥ; then e = decay * e + (1 - decay) * (h - ĥ), rounded to 8 bits.

    decay: the weight of the previous errors.
    reset: every so many steps the error is set to zero.

    As e is an average, errors return slowly, but all of them: results lack e / (1 - decay), which the memory owes. A reset drops
    it, and rounding e loses some. `begin` writes nothing. Slots: `codes` and `scales` of e, or `e` itself after a change of
    the number of ranks.
    """

    roles = {"e": "residual", "scales": "residual"}

    def __init__(self, decay: float = 0.8, reset: int = 1024) -> None:
        super().__init__()
        self.decay = number("decay", decay, "the weight of previous errors; 0.8 is usual", least=0, below=1)
        self.reset = whole(
            "reset", reset, "the steps after which the error is dropped; 1024 is usual", least=1
        )

    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        h = torch.empty(tensor.shape, dtype=work_dtype(tensor.dtype), device=tensor.device).copy_(tensor)
        self._add_error(h, name)
        return h

    def update(self, tensor: Tensor, name: str, compressor: Compressor, payload: Payload, ctx: Any) -> None:
        left = tensor.clone(memory_format=torch.contiguous_format)
        compressor.residual_(left, payload, ctx)
        self.state[name] = self._averaged(left, getattr(ctx, "key", Key(name)))

    def begin(self, grad: Tensor, key: Key, compressor: Compressor, out: Payload | None = None) -> Pending:
        h = self.compensate(grad, key.name)
        payload, ctx = compressor.encode_from(Source(h, leave="residual"), key, out)
        return LocoPending(key, compressor, grad, payload, ctx, slots=self._averaged(h, key))

    def commit(self, pending: Pending) -> None:
        assert isinstance(pending, LocoPending) and pending.slots is not None
        self.state[pending.key.name] = dict(pending.slots)

    def magnitude(self, pending: Pending) -> float:
        assert isinstance(pending, LocoPending) and pending.slots is not None
        return norm(self.settled(pending.slots)["e"]) / (1 - self.decay)

    def _averaged(self, left: Tensor, key: Key) -> dict[str, Tensor]:
        """The new slots; overwrites `left`, what was not sent."""
        if (key.step + 1) % self.reset == 0:
            left.zero_()
        else:
            self._add_error(left.mul_(1 - self.decay), key.name, self.decay)
        codes = torch.empty(left.numel(), dtype=torch.uint8, device=left.device)
        scales = torch.empty(blocks(left.numel(), BLOCK), dtype=left.dtype, device=left.device)
        word = key.word("error")
        kernels.of(left).block_encode(Source(left), BLOCK, LEVELS, BITS, "max", word, codes, scales)
        return {"codes": codes, "scales": scales}

    def _add_error(self, out: Tensor, name: str, alpha: float = 1.0) -> None:
        """out += alpha * e."""
        codes = self.held(name, "codes", out.view(-1))
        if codes is not None:
            scales = self.state[name]["scales"]
            scales = scales if alpha == 1 else scales * alpha
            kernels.of(out).block_add(out, codes, scales, BLOCK, LEVELS, BITS)
        elif (e := self.held(name, "e", out)) is not None:
            out.add_(e.view_as(out), alpha=alpha)

    def second_phase(self) -> Memory:
        return LocoMemory(self.decay, self.reset)

    def residual(self, name: str) -> Tensor | None:
        slots = self.state.get(name)
        return self.settled(slots)["e"].div_(1 - self.decay) if slots else None

    def settled(self, slots: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if "codes" not in slots:
            return {"e": slots["e"].clone()}
        e = torch.zeros(slots["codes"].numel(), dtype=slots["scales"].dtype, device=slots["scales"].device)
        kernels.of(e).block_add(e, slots["codes"], slots["scales"], BLOCK, LEVELS, BITS)
        return {"e": e}
