"""What a communicator keeps from step to step, how it is handed on, saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..errors import StateError
from ..memory.base import Memory
from ..registry import Method
from ..transport import Transport

_FORMAT = 1
_SAVED = ("rank", "world_size", "loss_scale", "steps", "carried", "memories")


class Kept:
    """The state of a communicator: its memory, a step counter for each parameter, and what a former method still owes."""

    method: Method
    memory: Memory
    seed: int
    transport: Transport
    _transport: Transport | None
    _world_size: int | None

    def __init__(self) -> None:
        self.loss_scale: float | None = None
        self._steps: dict[str, int] = {}
        self._carried: dict[str, Tensor] = {}
        self._loaded_rank: tuple[int, int] | None = None

    def set_loss_scale(self, scale: float) -> None:
        """Tell that gradients are multiplied by `scale`; state kept so far follows."""
        if self.loss_scale is not None and scale != self.loss_scale:
            for memory in self._memories().values():
                memory.rescale_(scale / self.loss_scale)
            for owed in self._carried.values():
                owed.mul_(scale / self.loss_scale)
        self.loss_scale = scale

    def residual(self, name: str) -> Tensor | None:
        """What is still owed for a parameter, flat, in units of the gradient."""
        owed = self.memory.residual(name)
        carried = self._carried.get(name)
        if owed is None or carried is None:
            return carried if owed is None else owed.view(-1)
        return owed.view(-1) + carried

    def take_over(self, other: Kept, names: Sequence[str]) -> None:
        """Go on where another communicator stops: step counters, loss scale and what it still owes."""
        self._steps = {**other._steps, **self._steps}
        self.loss_scale = other.loss_scale
        for name in names:
            owed = other.residual(name)
            if owed is not None:
                self._carried[name] = owed.detach().clone()

    def rejoin(self, transport: Transport, names: Sequence[str]) -> None:
        """Go on among other ranks, as after an elastic reset: everyone begins anew, but still pays what it owes."""
        owed = {name: self.residual(name) for name in names}
        self._carried = {name: o.detach().clone() for name, o in owed.items() if o is not None}
        for memory in self._memories().values():
            memory.state.clear()
        self._steps.clear()
        self._loaded_rank = self._world_size = None
        self.transport = transport

    def _memories(self) -> dict[str, Memory]:
        return {"memory": self.memory}

    def state_dict(self) -> dict[str, Any]:
        """All this rank needs to go on exactly where it is."""
        return {
            "format": _FORMAT,
            "method": self.method.name,
            "memory_type": type(self.memory).__name__,
            "rank": self.transport.rank,
            "world_size": self.transport.size,
            "seed": self.seed,
            "loss_scale": self.loss_scale,
            "steps": dict(self._steps),
            "carried": {name: owed.clone() for name, owed in self._carried.items()},
            "memories": {label: memory.state_dict() for label, memory in self._memories().items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict` of the same rank; nothing is changed where it does not fit."""
        for field, mine in (
            ("format", _FORMAT),
            ("method", self.method.name),
            ("memory_type", type(self.memory).__name__),
            ("seed", self.seed),
        ):
            if state.get(field) != mine:
                raise StateError(
                    f"the saved state has {field}={state.get(field)!r}, this object has {mine!r}; build it as it was "
                    "when the state was saved."
                )
        missing = [field for field in _SAVED if field not in state]
        if missing:
            raise StateError(
                f"the saved state lacks {', '.join(missing)}: it is damaged, or no state_dict() made it."
            )
        memories = self._memories()
        if set(state["memories"]) != set(memories):
            raise StateError(
                f"the saved state holds memories {sorted(state['memories'])}, this communicator has "
                f"{sorted(memories)}; use the communicator it was saved with."
            )
        saved = (int(state["rank"]), int(state["world_size"]))
        if self._transport is not None and saved != (self._transport.rank, self._transport.size):
            raise StateError(
                f"this is the state of rank {saved[0]} of {saved[1]}, but here is rank {self._transport.rank} of "
                f"{self._transport.size}; every rank saves and loads its own."
            )
        self._loaded_rank = saved
        self.loss_scale = state["loss_scale"]
        self._steps = dict(state["steps"])
        self._carried = {name: owed.clone() for name, owed in state["carried"].items()}
        for label, memory in memories.items():
            memory.load_state_dict(state["memories"][label])
