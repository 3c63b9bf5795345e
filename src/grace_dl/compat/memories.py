"""The original GRACE's memories: its constructors over those of `grace_dl.memory`."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from ..memory import dgc, powersgd
from ..memory.efsignsgd import EFSignSGDMemory as EFSignSGDMemory
from ..memory.none import NoneMemory as NoneMemory
from ..memory.residual import ResidualMemory as ResidualMemory
from .compressors import RANK


class DgcMemory(dgc.DgcMemory):
    """Momentum correction. gradient_clipping: False. world_size: accepted and ignored.

    >>> DgcMemory(0.9, False, 2).momentum
    0.9
    """

    def __init__(
        self, momentum: float = 0.9, gradient_clipping: Any = False, world_size: int | None = None
    ) -> None:
        reject_clipping(gradient_clipping)
        super().__init__(momentum)


def reject_clipping(gradient_clipping: Any) -> None:
    """The original has a boolean here; only False is accepted."""
    if gradient_clipping:
        raise ConfigError(
            f"gradient_clipping={gradient_clipping!r}: the original limited every element to the tensor's norm over all ranks, "
            "which takes an exchange in the middle of backward. Give False, or clip each rank's own gradient with "
            "grace.dgc(ratio, gradient_clipping=1.0)."
        )


class PowerSGDMemory(powersgd.PowerSGDMemory):
    """Residuals and warm-started factors. q_memory: accepted and ignored. compress_rank: the rank of the factors."""

    def __init__(self, q_memory: Any = None, compress_rank: int | None = None) -> None:
        super().__init__()
        if q_memory is not None and not isinstance(q_memory, dict):
            raise ConfigError(
                f"q_memory={q_memory!r} must be the compressor's dictionary, as in PowerSGDMemory(compressor.q_memory, 4)."
            )
        self._given = compress_rank

    @property
    def compress_rank(self) -> int:
        return RANK if self._given is None else self._given
