"""Optimizers with the interface of Horovod's `DistributedOptimizer`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex

import torch

from .. import saved_state, settings
from .checkpoint import without_residuals
from .optimizer import OptimizerHandle
from .optimizer_state import restored_on_error


def distributed(
    optimizer: torch.optim.Optimizer,
    handle: OptimizerHandle | None,
    *,
    saves_state: bool = False,
    module: str | None = None,
) -> Any:
    """Give `optimizer` the methods of a distributed one; `handle` is None on ranks that do not participate.

    The class of the object is changed in place, so that schedulers and scalers that refer to it keep working.
    `saves_state`: its `state_dict` includes that of the handle. `module`: the value of its class's `__module__`.
    """
    # A scheduler may have replaced `step` on the instance, which would bypass ours.
    vars(optimizer).pop("step", None)
    base = type(optimizer)
    # `step` is defined on the new class itself: hvd.broadcast_optimizer_state bypasses one class to skip the exchange.
    members = {"step": _step, "__module__": module or base.__module__, "__qualname__": base.__qualname__}
    optimizer.__class__ = type(base.__name__, (Distributed, base), members)
    assert isinstance(optimizer, Distributed)
    optimizer.grace, optimizer._grace_skip, optimizer._grace_saves = handle, False, saves_state
    return optimizer


class Distributed(torch.optim.Optimizer):
    """What a distributed optimizer adds to its class, except `step`."""

    grace: OptimizerHandle | None
    _grace_skip: bool
    _grace_saves: bool

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """A copied or pickled optimizer is a plain one, as a copy of an attached model is a plain model."""
        plain = type(self).__bases__[1]
        return plain.__new__, (plain,), self.__getstate__()

    def synchronize(self) -> None:
        """Exchange the remaining gradients, for clipping before `step`."""
        if self.grace is not None:
            self.grace.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within this context, `step()` does not exchange gradients."""
        self._grace_skip = True
        try:
            yield
        finally:
            self._grace_skip = False

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within this context, backward passes only accumulate locally; the next pass exchanges the sum."""
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
        """Set the number of backward passes per exchange."""
        settings.passes(passes)
        if self.grace is not None:
            self.grace.reducer.options.passes = passes

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state and, if it is saved, the state of this rank's handle under "grace"."""
        own = super().state_dict()
        return (
            {**own, "grace": self.grace.state_dict()} if self._grace_saves and self.grace is not None else own
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore `state_dict`; if it cannot be loaded, nothing changes. Residuals of another rank are dropped, with a warning."""
        own = {key: value for key, value in state_dict.items() if key != "grace"}
        if self.grace is None or state_dict.get("grace") is None:
            super().load_state_dict(own)
            return
        saved = _fitting(self.grace, state_dict["grace"])
        # A step in progress is given up only for a state that fits.
        self.grace.session.fitting(saved, self.grace._parameter_sizes())
        self.grace.reducer.give_up()
        with restored_on_error(self):
            super().load_state_dict(own)
            self.grace.load_state_dict(saved)


def _step(self: Distributed, closure: Callable[[], Any] | None = None) -> Any:
    """Take a step with the averaged gradients; the remaining gradients are exchanged first."""
    if self.grace is not None and not self.grace.closed and not self._grace_skip:
        self.grace.before_step(closure)
    plain = super(Distributed, self).step
    loss = plain() if closure is None else plain(closure)
    if self.grace is not None:
        self.grace.after_step()
    self._opt_called = True  # type: ignore[attr-defined]
    return loss


# The base class runs the step hooks; torch would otherwise wrap this function too, and run them twice. Schedulers
# wrap `step` to check the order of calls; `_opt_called` serves that purpose.
_step.hooked = _step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


def _fitting(handle: OptimizerHandle, saved: dict[str, Any]) -> dict[str, Any]:
    """Convert `saved` so that this rank can load it."""
    transport = handle.session.transport
    saved_state.check(saved, str(handle.method))
    if (saved["rank"], saved["world_size"]) == (transport.rank, transport.size):
        return saved
    warnings.warn(
        f"this is the checkpoint of rank {saved['rank']} of {saved['world_size']}, loaded on rank {transport.rank} "
        f"of {transport.size}: residuals start from zero here. Save and load one per rank to go on exactly.",
        stacklevel=3,
    )
    return without_residuals(saved, transport.rank, transport.size)
