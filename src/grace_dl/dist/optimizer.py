"""`grc.attach(optimizer, named_parameters=...)`: compression for any optimizer, without a keyword of Horovod's.

Works under Horovod, under `torch.distributed` without DDP, and alone; the engine is found as for everything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import ConfigError
from ..pipeline.reducer import BUCKET_BYTES, Reducer
from ..telemetry import Stats

if TYPE_CHECKING:
    from ..communicator.base import Communicator


class AttachedOptimizer:
    """An optimizer whose gradients are compressed: the same three verbs as for an attached DDP model."""

    def __init__(
        self,
        communicator: Communicator,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, Tensor]] | None = None,
        scaler: Any = None,
        *,
        passes: int = 1,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._names = named(optimizer, named_parameters)
        if getattr(optimizer, "_grace_reducer", None) is not None:
            raise ConfigError(
                "this optimizer's gradients are compressed already; use switch() or detach() first."
            )
        self._optimizer: Any = optimizer
        self._reducer: Reducer = _reducer(communicator)(
            self._names, communicator, passes=passes, scaler=scaler, bucket_bytes=bucket_bytes
        )
        optimizer._grace_reducer = self._reducer  # type: ignore[attr-defined]
        # A step taken before all its backward passes have come is exchanged with what is there.
        self._hook = optimizer.register_step_pre_hook(lambda *_: self.synchronize())

    @property
    def communicator(self) -> Communicator:
        """The method in use."""
        return self._reducer.communicator

    def stats(self) -> Stats:
        """Bytes, collectives and seconds so far, of this rank with the present method."""
        return self.communicator.stats.copy()

    def synchronize(self) -> None:
        """Exchange what earlier backward passes of an unfinished step have left; else nothing is to do."""
        if self._reducer.unfinished:
            self._reducer.finish()

    def switch(self, communicator: Communicator) -> None:
        """Use another method from the next step on; all ranks must do so between the same two steps."""
        before = self._reducer.communicator
        if communicator is before:
            return
        communicator.transport = before.transport
        communicator.take_over(before, [name for name, _ in self._names])
        self._reducer.communicator = communicator

    def detach(self) -> None:
        """Leave the gradients alone from now on: every rank keeps its own."""
        self._reducer.close()
        self._hook.remove()
        self._optimizer._grace_reducer = None


def _reducer(communicator: Communicator) -> type[Reducer]:
    if type(communicator.transport).__name__ == "HorovodTransport":
        from ..pipeline.horovod_reducer import HorovodReducer

        return HorovodReducer
    return Reducer


def named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None
) -> list[tuple[str, Tensor]]:
    """The optimizer's parameters with their names; numbered, as Horovod does, where no names are given."""
    groups = [group["params"] for group in optimizer.param_groups]
    if named_parameters is None:
        return [
            (f"allreduce.noname.{i}.{j}", p) for i, group in enumerate(groups) for j, p in enumerate(group)
        ]
    names = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in names):
        raise ConfigError("named_parameters must be pairs (name, parameter); pass model.named_parameters().")
    known = {id(p) for _, p in names}
    missing = sum(id(p) not in known for group in groups for p in group)
    if missing:
        raise ConfigError(
            f"{missing} parameters of the optimizer are not in named_parameters; pass model.named_parameters() of "
            "the whole model, and of every model the optimizer serves."
        )
    own = {id(p) for group in groups for p in group}
    return [(name, p) for name, p in names if id(p) in own]
