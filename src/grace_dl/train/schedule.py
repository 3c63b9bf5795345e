"""Learning rates as functions of time, so that a resumed run needs no scheduler state.

Names and settings are those of torch.optim.lr_scheduler. Time is counted in epochs since the end of the warm-up: in
whole epochs if `schedule_lr_per_epoch`, otherwise with fractions, so that the rate changes at every step.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

from ..errors import ConfigError


class Schedule:
    """A learning rate that depends on time in epochs."""

    def rate(self, base: float, time: float) -> float:
        """The rate `time` epochs after the warm-up, which ends at `base`."""
        return base


class ConstantLR(Schedule):
    """A constant rate."""


class CosineAnnealingLR(Schedule):
    """Half a cosine from the base rate to `eta_min` in `T_max` epochs; it then stays there.

    >>> [CosineAnnealingLR(T_max=10).rate(1.0, t) for t in (0, 10, 20)]
    [1.0, 0.0, 0.0]
    """

    def __init__(self, T_max: float, eta_min: float = 0.0) -> None:
        if not T_max > 0:
            raise ConfigError(
                f"T_max={T_max!r} must be positive: the epochs from the end of the warm-up to the lowest rate. Is "
                "warmup_lr_epochs as long as the run?"
            )
        self.length, self.lowest = float(T_max), float(eta_min)

    def rate(self, base: float, time: float) -> float:
        share = (1 + math.cos(math.pi * min(1.0, time / self.length))) / 2
        return self.lowest + (base - self.lowest) * share


class MultiStepLR(Schedule):
    """The rate times `gamma` at each of the `milestones`.

    >>> [MultiStepLR([2, 4]).rate(1.0, t) for t in (0, 2)]
    [1.0, 0.1]
    """

    def __init__(self, milestones: Sequence[float], gamma: float = 0.1) -> None:
        self.milestones, self.gamma = sorted(milestones), float(gamma)

    def rate(self, base: float, time: float) -> float:
        return base * self.gamma ** bisect.bisect_right(self.milestones, time)


class StepLR(Schedule):
    """The rate times `gamma` every `step_size` epochs."""

    def __init__(self, step_size: float, gamma: float = 0.1) -> None:
        if not step_size > 0:
            raise ConfigError(f"step_size={step_size!r} must be positive.")
        self.every, self.gamma = float(step_size), float(gamma)

    def rate(self, base: float, time: float) -> float:
        return base * self.gamma ** int(time / self.every)


class LearningRate:
    """The rate of every step: linear scaling, warm-up, then the schedule (Goyal 2017, sections 2.1 and 2.2)."""

    def __init__(
        self,
        base: float,
        factor: int,
        schedule: Schedule | None,
        warmup_epochs: float = 0.0,
        steps_per_epoch: int = 1,
        per_epoch: bool = True,
    ) -> None:
        self.base, self.factor = base, factor
        self.schedule = schedule or ConstantLR()
        self.warmup, self.steps, self.per_epoch = warmup_epochs, steps_per_epoch, per_epoch

    def __call__(self, step: int) -> float:
        """The rate of step number `step`, counted from 0.

        >>> rate = LearningRate(0.1, factor=8, schedule=None, warmup_epochs=5, steps_per_epoch=10)
        >>> [round(rate(step), 3) for step in (0, 25, 50, 500)]
        [0.1, 0.45, 0.8, 0.8]
        """
        epoch = step / self.steps
        peak = self.base * self.factor
        if epoch < self.warmup:
            return self.base + (peak - self.base) * epoch / self.warmup
        time = epoch - self.warmup
        if self.per_epoch:
            time = max(0.0, step // self.steps - self.warmup)
        return self.schedule.rate(peak, time)
