"""The error memory of EF-signSGD, in units of the step: e + lr * g."""

from __future__ import annotations

from ..methods.efsignsgd import LEARNING_RATE, checked_rate
from .residual import ResidualMemory


class EFSignSGDMemory(ResidualMemory):
    """x = e + lr * g; afterwards e = x - sent (Karimireddy et al. 2019, algorithm 1)."""

    def __init__(self, lr: float = LEARNING_RATE) -> None:
        super().__init__(beta=1.0, gamma=checked_rate(lr))
        self.lr = float(lr)

    def second_phase(self) -> EFSignSGDMemory:
        return EFSignSGDMemory(self.lr)
