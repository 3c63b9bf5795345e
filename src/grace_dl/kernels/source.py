"""What kernels are given: the input of an encoder, and a parameter's state under DGC's momentum correction."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from torch import Tensor

from ..errors import UnsupportedError


class Leave(Enum):
    """What an encoder leaves in `Source.x`."""

    INPUT = "the input"
    """x as it was."""
    RESIDUAL = "the residual"
    """What was encoded minus what is decoded of it."""
    COMPENSATED = "the compensated input"
    """What was encoded: a momentum that is updated in the same pass."""
    DEFERRED = "the deferred residual"
    """What was encoded, and in `Source.owed` what the next step has to take off it."""


class Source(NamedTuple):
    """What an encoder encodes, v = x, or beta * x + gamma * grad with every operation rounded, and what becomes of x.

    Tensors are contiguous and of one dtype and length; their shape does not matter. With Leave.DEFERRED, what the last
    step sent leaves x first: owed[0] where x is negative, owed[1] elsewhere.

    >>> import torch
    >>> Source(torch.zeros(3)).leaves(Leave.RESIDUAL)
    False
    """

    x: Tensor
    grad: Tensor | None = None
    beta: float = 1.0
    gamma: float = 1.0
    leave: Leave = Leave.INPUT
    owed: Tensor | None = None

    def leaves(self, what: Leave) -> bool:
        """Whether x becomes `what`, the one thing that the asking kernel can leave there; False if x stays as it is."""
        if self.leave is what:
            return True
        if self.leave is Leave.INPUT:
            return False
        raise UnsupportedError(
            f"a kernel that can leave {what.value} in its input was asked for {self.leave.value}; encode without "
            "changing the input and compute the rest from the payload, as Compressor.encode_from does."
        )


class Correction(NamedTuple):
    """A parameter under momentum correction (Lin 2018, section 3): momentum m, sum v, and gradient `scale * grad`."""

    m: Tensor
    v: Tensor
    grad: Tensor
    scale: float = 1.0
