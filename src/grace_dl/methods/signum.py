"""Signum: signSGD of the momentum."""

from __future__ import annotations

from ..errors import ConfigError
from ..registry import register
from .signsgd import SignCompressor

MOMENTUM = 0.9
"""Default of `momentum` in the compressor and in its memory, which must agree."""


def checked_momentum(momentum: float) -> float:
    """`momentum` as a float; anything outside (0, 1) is refused."""
    if not (isinstance(momentum, (int, float)) and 0 < momentum < 1):
        raise ConfigError(
            f"momentum={momentum!r} must lie between 0 and 1; {MOMENTUM} is customary, and without momentum use signsgd."
        )
    return float(momentum)


@register(
    "signum", family="signs", bits="1", reference="Bernstein 2018, ICML", memories=("signum",), dense_below=0
)
class SignumCompressor(SignCompressor):
    """Signs of the momentum m = momentum * m + (1 - momentum) * g, decided by majority vote over workers."""

    def __init__(self, momentum: float = MOMENTUM) -> None:
        super().__init__()
        self.momentum = checked_momentum(momentum)
