"""What is kept for each parameter whatever its method: a step counter, and what a former method still owes."""

from __future__ import annotations

from torch import Tensor


class State:
    """Owned by a session and shared by its communicators."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        """Committed steps of each parameter."""
        self.carried: dict[str, Tensor] = {}
        """What a former method owes, flat, in units of the gradient; paid with the next gradient."""
        self.loss_scale: float | None = None
        self.furthest = 0
        """Committed steps of the parameter that has most of them: the step of training."""

    def step(self, name: str) -> int:
        """The number of a parameter's next step, from 0."""
        return self.steps.get(name, 0)

    def commit(self, name: str) -> None:
        """Count a parameter's step; what was carried has been sent with it."""
        done = self.steps[name] = self.steps.get(name, 0) + 1
        self.furthest = max(self.furthest, done)
        self.carried.pop(name, None)

    def carry(self, name: str, owed: Tensor | None) -> None:
        """Add what a method owes to what is carried."""
        if owed is not None:
            carried = self.carried.get(name)
            self.carried[name] = owed.detach().clone() if carried is None else carried + owed

    def rescale(self, factor: float) -> None:
        """The loss scale has changed by this factor."""
        for owed in self.carried.values():
            owed.mul_(factor)
