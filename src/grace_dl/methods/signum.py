"""Signum: signSGD of the momentum."""

from __future__ import annotations

from ..registry import register
from ..settings import number
from .signsgd import SignCompressor

MOMENTUM = 0.9
"""Default of `momentum` in the compressor and in its memory, which must agree."""


def checked_momentum(momentum: float) -> float:
    """`momentum` as a float; anything outside (0, 1) is rejected."""
    why = f"{MOMENTUM} is usual; without momentum use signsgd"
    return number("momentum", momentum, why, above=0, below=1)


@register(
    "signum", family="signs", bits="1", reference="Bernstein 2018, ICML", memories=("signum",), dense_below=0
)
class SignumCompressor(SignCompressor):
    """Signs of the momentum m = momentum * m + (1 - momentum) * g, combined by majority vote over workers.

        m = momentum · m + (1 - momentum) · g,  result = sign(Σ sign(m)) over workers

    momentum: the weight of the previous momentum.
    """

    def __init__(self, momentum: float = MOMENTUM) -> None:
        super().__init__()
        self.momentum = checked_momentum(momentum)
