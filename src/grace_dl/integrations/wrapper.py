"""Optimizers that are called like Horovod's: the methods that `DistributedOptimizer` adds."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import ConfigError
from ..telemetry import Stats
from .checkpoint import without_residuals
from .optimizer import OptimizerHandle


def distributed(
    optimizer: torch.optim.Optimizer,
    handle: OptimizerHandle | None,
    *,
    saves_state: bool = False,
    module: str | None = None,
) -> Any:
    """Give `optimizer` the methods of a distributed one; `handle` is None on ranks that take no part.

    The object itself changes class, so that schedulers and scalers that know it go on working. `saves_state`: its
    `state_dict` includes that of the handle. `module`: the module its class pretends to belong to.
    """
    # A scheduler has put its own `step` there, which would lead past ours.
    vars(optimizer).pop("step", None)
    base = type(optimizer)
    # `step` belongs to the new class itself: hvd.broadcast_optimizer_state steps past one class to leave out the exchange.
    members = {"step": _step, "__module__": module or base.__module__, "__qualname__": base.__qualname__}
    optimizer.__class__ = type(base.__name__, (Distributed, base), members)
    assert isinstance(optimizer, Distributed)
    optimizer.grace, optimizer._grace_skip, optimizer._grace_saves = handle, False, saves_state
    return optimizer


class Distributed(torch.optim.Optimizer):
    """What a distributed optimizer adds to its own class, but for `step`."""

    grace: OptimizerHandle | None
    _grace_skip: bool
    _grace_saves: bool

    def stats(self) -> Stats:
        """Bytes, collectives and seconds so far, of this rank."""
        return Stats() if self.grace is None else self.grace.stats()

    def synchronize(self) -> None:
        """Exchange what backward passes have left, for clipping before `step`."""
        if self.grace is not None:
            self.grace.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, `step()` takes the gradients as they are."""
        self._grace_skip = True
        try:
            yield
        finally:
            self._grace_skip = False

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, backward passes only add up locally; the first one after it exchanges the sum."""
        if self.grace is None:
            yield
            return
        reducer = self.grace.reducer
        before, reducer.enabled = reducer.enabled, False
        try:
            yield
        finally:
            reducer.enabled = before

    @property
    def backward_passes_per_step(self) -> int:
        return 1 if self.grace is None else self.grace.reducer.options.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Exchange after that many backward passes from now on."""
        if passes < 1:
            raise ConfigError(f"backward_passes_per_step={passes} must be 1 or more.")
        if self.grace is not None:
            self.grace.reducer.options.passes = passes

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own and, where it is saved, under "grace" that of this rank's handle."""
        own = super().state_dict()
        return (
            {**own, "grace": self.grace.state_dict()} if self._grace_saves and self.grace is not None else own
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from `state_dict`. From another rank's, all but the residuals is taken, with a warning."""
        own = {key: value for key, value in state_dict.items() if key != "grace"}
        if self.grace is None or state_dict.get("grace") is None:
            super().load_state_dict(own)
            return
        self.grace.reducer.give_up()
        saved = _fitting(self.grace, state_dict["grace"])
        # Both are checked before either changes.
        self.grace.session.check_state(saved)
        super().load_state_dict(own)
        self.grace.load_state_dict(saved)


def _step(self: Distributed, closure: Callable[[], Any] | None = None) -> Any:
    """Take a step with the averaged gradients; what backward has not exchanged is exchanged first."""
    if self.grace is not None and not self.grace.closed and not self._grace_skip:
        self.grace.before_step(closure)
    plain = super(Distributed, self).step
    loss = plain() if closure is None else plain(closure)
    if self.grace is not None:
        self.grace.after_step()
    self._opt_called = True
    return loss


# The class below runs the step hooks; torch would otherwise wrap this one too, and run them twice. Schedulers
# wrap `step` to see the order of calls, which `_opt_called` tells.
_step.hooked = _step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


def _fitting(handle: OptimizerHandle, saved: dict[str, Any]) -> dict[str, Any]:
    """`saved` as this rank may load it."""
    transport = handle.session.transport
    if (saved["rank"], saved["world_size"]) == (transport.rank, transport.size):
        return saved
    warnings.warn(
        f"this is the checkpoint of rank {saved['rank']} of {saved['world_size']}, loaded on rank {transport.rank} "
        f"of {transport.size}: residuals start from zero here. Save and load one per rank to go on exactly.",
        stacklevel=3,
    )
    return without_residuals(saved, transport.rank, transport.size)
