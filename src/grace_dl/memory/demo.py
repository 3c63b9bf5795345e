"""The momentum of DeMo, which gives up what was sent."""

from __future__ import annotations

from ..settings import number
from .residual import ResidualMemory


class DemoMemory(ResidualMemory):
    """m = decay * m + g; what was sent of m is subtracted from it (Peng 2024, algorithm 1).

    decay: the weight of the previous momentum.
    """

    def __init__(self, decay: float = 0.999) -> None:
        self.decay = number(
            "decay", decay, "the weight of the previous momentum; 0.999 is usual", above=0, most=1
        )
        super().__init__(beta=self.decay)

    def second_phase(self) -> ResidualMemory:
        return ResidualMemory()
