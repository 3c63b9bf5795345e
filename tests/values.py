"""Small helpers whose types are narrower than those of Python's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def not_none(value: T | None) -> T:
    """The value of something optional that a test knows to be there, such as a gradient or a residual."""
    assert value is not None
    return value


def total(tensors: Iterable[Tensor]) -> Tensor:
    """The sum of tensors, which `sum` would take for an int where there are none."""
    return sum(tensors, torch.zeros(()))
