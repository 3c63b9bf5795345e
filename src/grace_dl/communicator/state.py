"""Per-parameter state that is independent of the method: step counter, and carried residual of a previous method."""

from __future__ import annotations

from torch import Tensor


class State:
    """Owned by a session and shared by its communicators.

    `joinable`: whether ranks may join that have no state.
    """

    def __init__(self, joinable: bool = False) -> None:
        self._joinable = joinable
        self.steps: dict[str, int] = {}
        """Committed steps of each parameter."""
        self.carried: dict[str, Tensor] = {}
        """The residual of a previous method, flat, in units of the gradient; added to the next gradient. Ranks differ: one
        that did not use a parameter has nothing to carry."""
        self.moved: set[str] = set()
        """Parameters whose method has changed since their last committed step; the same on every rank."""
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
        self.moved.discard(name)

    def may_owe(self, name: str) -> bool:
        """Whether some rank may carry a residual of a parameter; the same on every rank."""
        return name in self.moved or (self._joinable and name not in self.steps)

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
