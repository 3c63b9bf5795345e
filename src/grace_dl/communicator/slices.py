"""State of parameters that are cut into slices: an entry for each, in order, `name#0`, `name#1`, …; `name` if uncut.

An all-to-all cuts buckets, and buckets change: state is cut anew for a new layout, and joined when it is converted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..errors import StateError
from ..memory.base import Memory
from ..memory.conversion import SavedMemory

Slots = dict[str, Tensor]


def slice_name(name: str, number: int, count: int) -> str:
    """The name of one of `count` slices of a parameter.

    >>> slice_name("w", 0, 1), slice_name("w", 1, 3)
    ('w', 'w#1')
    """
    return name if count == 1 else f"{name}#{number}"


def again(name: str) -> str:
    """The name for the second encoding of a slice, by its owner, with its own random draws and residual."""
    return f"{name}'"


def by_parameter(keys: Iterable[str]) -> dict[str, list[str]]:
    """The keys of each parameter's slices, in order.

    >>> by_parameter(["w#1'", "v", "w#0'", "w#10'"])
    {'w': ["w#0'", "w#1'", "w#10'"], 'v': ['v']}
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for key in keys:
        name, number = _parsed(key)
        found.setdefault(name, []).append((number, key))
    return {name: [key for _, key in sorted(parts)] for name, parts in found.items()}


def _parsed(key: str) -> tuple[str, int]:
    whole = key.removesuffix("'")
    name, _, number = whole.rpartition("#")
    return (name, int(number)) if name and number.isdigit() else (whole, 0)


def joined(memory: Memory, saved: SavedMemory) -> dict[str, Slots]:
    """Slices as whole parameters, flat."""
    whole = {}
    for name, keys in by_parameter(saved).items():
        ordered = [memory.settled(saved[key]) for key in keys]
        whole[name] = {slot: torch.cat([slots[slot].view(-1) for slots in ordered]) for slot in ordered[0]}
    return whole


def lengths(saved: SavedMemory, keys: Iterable[str]) -> list[int]:
    """How many elements each slice has."""
    return [next(iter(saved[key].values())).numel() for key in keys]


def start_of(key: str, saved: SavedMemory, keys: Sequence[str]) -> int:
    """Where a slice starts; `keys` are all slices of its parameter in `saved`."""
    return sum(lengths(saved, keys[: _parsed(key)[1]]))


def cut(memory: Memory, name: str, keys: Sequence[str], sizes: Sequence[int]) -> None:
    """Cut a parameter's state, which is held under `keys`, into slices of the given sizes."""
    held = joined(memory, {key: memory.state[key] for key in keys})[name]
    numel = sum(sizes)
    for slot, tensor in held.items():
        if tensor.numel() != numel:
            raise StateError(
                f"{type(memory).__name__} holds {tensor.numel()} elements of {slot!r} for parameter {name!r}, but its gradient "
                f"has {numel}: two parameters share a name, or a checkpoint of another model was loaded. Give every "
                "parameter its own name."
            )
    for key in keys:
        del memory.state[key]
    start = 0
    for number, size in enumerate(sizes):
        slots = {slot: tensor[start : start + size].clone() for slot, tensor in held.items()}
        memory.state[slice_name(name, number, len(sizes))] = slots
        start += size
