"""Per-parameter state that is independent of the method: step counter, and carried residual of a previous method."""

from __future__ import annotations

from torch import Tensor


class State:
    """Owned by a session and shared by its communicators."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        """Committed steps of each parameter."""
        self.carried: dict[str, Tensor] = {}
        """The residual of a previous method, flat, in units of the gradient; added to the next gradient."""
        self.loss_scale: float | None = None
        self.furthest = 0
        """The largest number of committed steps of any parameter: the training step."""

    def step(self, name: str) -> int:
        """The number of a parameter's next step, from 0."""
        return self.steps.get(name, 0)

    def commit(self, name: str) -> None:
        """Count a parameter's step; its carried residual has been sent."""
        done = self.steps[name] = self.steps.get(name, 0) + 1
        self.furthest = max(self.furthest, done)
        self.carried.pop(name, None)

    def carry(self, name: str, owed: Tensor | None) -> None:
        """Add a method's residual to the carried one."""
        if owed is not None:
            carried = self.owed(name, owed)
            self.carried[name] = owed.detach().clone() if carried is None else carried + owed

    def owed(self, name: str, like: Tensor) -> Tensor | None:
        """The carried residual of a parameter, on the device of its gradient."""
        owed = self.carried.get(name)
        if owed is not None and owed.device != like.device:  # loaded on another device
            owed = self.carried[name] = owed.to(like.device)
        return owed

    def rescale(self, factor: float) -> None:
        """Rescale carried residuals: the loss scale changed by this factor."""
        for owed in self.carried.values():
            owed.mul_(factor)
