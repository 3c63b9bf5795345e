"""A digest of saved state: damage to a checkpoint is noticed when it is loaded."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .errors import StateError

FIELD = "digest"


def digest(state: Any) -> str:
    """A digest of nested dictionaries and sequences of tensors, numbers and text, independent of device.

    >>> digest({"a": 1}) == digest({"a": 1}), digest({"a": 1}) == digest({"a": 1.0})
    (True, False)
    """
    found = hashlib.blake2b(digest_size=16)
    _add(found, state)
    return found.hexdigest()


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with its digest."""
    content = _content(state)
    return {**content, FIELD: digest(content)}


def check(state: Mapping[str, Any], what: str) -> None:
    """Raise unless a state is as it was sealed."""
    if state.get(FIELD) != digest(_content(state)):
        raise StateError(
            f"{what} is damaged: its content does not match its digest; load an older checkpoint, or copy the file again."
        )


def _content(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key != FIELD}


def _add(found: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        found.update(f"T{value.dtype}{tuple(value.shape)}".encode())
        raw = value.detach().cpu().contiguous().reshape(-1)
        if raw.numel():
            found.update(raw.view(torch.uint8).numpy())
    elif isinstance(value, Mapping):
        found.update(f"M{len(value)}".encode())
        for key in sorted(value, key=repr):
            _add(found, key)
            _add(found, value[key])
    elif isinstance(value, (list, tuple)):
        found.update(f"L{len(value)}".encode())
        for item in value:
            _add(found, item)
    elif isinstance(value, float):
        found.update(b"F" + struct.pack("<d", value))
    else:
        text = f"{type(value).__name__}:{value!r}".encode()
        found.update(f"{len(text)}:".encode() + text)
