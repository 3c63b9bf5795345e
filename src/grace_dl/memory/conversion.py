"""State for a different number of ranks: what ranks have not sent yet is conserved in the average.

A step averages gradient and residual over ranks. When W ranks become W', the residuals of the old ranks are dealt out to the
new ones and multiplied by W'/W, so that their contribution to the next average is the same. Ranks that get none start
from zero. Momenta are averaged. Everything else is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ..errors import StateError
from .base import Memory

SavedMemory = Mapping[str, Mapping[str, Tensor]]
"""What `Memory.state_dict` returns: tensors by parameter and slot."""


def convert(memory: Memory, old: Sequence[SavedMemory], rank: int, size: int) -> dict[str, dict[str, Tensor]]:
    """The state of `memory` on `rank` of `size`, from the states of all old ranks, in order."""
    converted = {}
    for name in _all_keys(old):
        held = [memory.settled(state[name]) if name in state else {} for state in old]
        converted[name] = {
            slot: _slot(memory, name, slot, [slots.get(slot) for slots in held], rank, size)
            for slot in _all_keys(held)
        }
    return converted


def dealt(old: Sequence[Tensor | None], rank: int, size: int) -> Tensor:
    """The residual of `rank` of `size`, from those of all old ranks: old rank r goes to rank r modulo `size`."""
    found = [tensor for tensor in old if tensor is not None]
    total = torch.zeros_like(found[0])
    for tensor in old[rank::size]:
        if tensor is not None:
            total += tensor
    return total.mul_(size / len(old))


def _slot(memory: Memory, name: str, slot: str, old: Sequence[Tensor | None], rank: int, size: int) -> Tensor:
    role = memory.roles.get(slot)
    if role == "residual":
        return dealt(old, rank, size)
    found = [tensor for tensor in old if tensor is not None]
    if len(found) == len(old) and all(torch.equal(tensor, found[0]) for tensor in found):
        return found[0].clone()
    if role == "momentum":
        return torch.stack(found).sum(0).div_(len(old))
    raise StateError(
        f"the saved states differ in {slot!r} of {name!r}, which {type(memory).__name__} does not declare as a residual or a "
        "momentum: they are of different steps, or `roles` of that class must name the slot."
    )


def _all_keys(states: Iterable[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(key for state in states for key in state))
