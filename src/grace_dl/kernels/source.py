"""What kernels are given: the input of an encoder, and a parameter's state under DGC's momentum correction."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from ..errors import UnsupportedError

Leave = Literal["input", "residual", "compensated", "deferred"]
"""What an encoder leaves in `Source.x`.

input: x as it was. residual: what was encoded minus what is decoded of it. compensated: what was encoded (a momentum that
is updated in the same pass). deferred: the same, and in `Source.owed` what the next step has to take off it.
"""


class Source(NamedTuple):
    """What an encoder encodes, v = x, or beta * x + gamma * grad with every operation rounded, and what becomes of x.

    Tensors are contiguous and of one dtype and length; their shape does not matter. With leave="deferred", what the last
    step sent is first taken off x: owed[0] where x is negative, owed[1] elsewhere.

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
        """Whether x becomes `what`, the one thing that the asking kernel can leave there; False if x stays as it is."""
        if self.leave == what:
            return True
        if self.leave == "input":
            return False
        raise UnsupportedError(
            f"a kernel was asked to leave {self.leave!r} in its input, but can only leave {what!r}; encode with "
            "leave='input' and compute the rest from the payload, as Compressor.encode_from does."
        )


class Correction(NamedTuple):
    """A parameter under momentum correction (Lin 2018, section 3): momentum m, sum v, and gradient `scale * grad`."""

    m: Tensor
    v: Tensor
    grad: Tensor
    scale: float = 1.0
