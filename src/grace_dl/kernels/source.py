"""Inputs of kernels: the source of an encoder, and a parameter's state under DGC's momentum correction."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from torch import Tensor

from ..errors import UnsupportedError

Leave = Literal["input", "residual", "compensated", "deferred"]
"""What an encoder stores in `Source.x`.

input: x unchanged. residual: the input minus the decoded payload. compensated: the input (a momentum that is updated in
the same pass). deferred: the input, and in `Source.owed` what the next step subtracts from it.
"""


class Source(NamedTuple):
    """The input of an encoder, v = x or beta * x + gamma * grad with every operation rounded, and what is stored in x.

    Tensors are contiguous and of one dtype and length; their shape does not matter. With leave="deferred", what the last
    step sent is first subtracted from x: owed[0] where x is negative, owed[1] elsewhere.

    >>> import torch
    >>> Source(torch.zeros(3)).leaves("residual")
    False
    """

    x: Tensor
    grad: Tensor | None = None
    beta: float = 1.0
    gamma: float = 1.0
    leave: Leave = "input"
    owed: Tensor | None = None

    def leaves(self, what: Leave) -> bool:
        """Whether x becomes `what`, the one result that the calling kernel can store; False if x is unchanged."""
        if self.leave == what:
            return True
        if self.leave == "input":
            return False
        raise UnsupportedError(
            f"a kernel was asked to leave {self.leave!r} in its input, but can only leave {what!r}; encode with "
            "leave='input' and compute the rest from the payload, as Compressor.encode_from does."
        )


class Correction(NamedTuple):
    """A parameter under momentum correction (Lin 2018, section 3): momentum m, sum v, and gradient `scale * grad`.

    If an element of `grad` reaches `limit`, a power of two, the gradient is refused as if it were not finite.
    """

    m: Tensor
    v: Tensor
    grad: Tensor
    scale: float = 1.0
    limit: float = math.inf
