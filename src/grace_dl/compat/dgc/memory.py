"""`DGCSGDMemory`: settings of the method's memory, with the original names and order."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from ...digest import sealed
from ...errors import ConfigError
from ...handle import Handle
from ...memory.dgc import DgcMemory

_SLOTS = {"momentums": "m", "velocities": "v"}
"""Keys of a saved state, with their slots in `DgcMemory`."""


class Memory:
    """The base of DGC's memories."""


class DGCSGDMemory(Memory):
    """Momentum correction, local clipping and momentum factor masking; see `grace_dl.memory.dgc.DgcMemory`.

    gradient_clipping: a norm (divided by the square root of the number of workers, Lin 2018, section 3.2), or a function from
    gradient to clipped gradient such as `functools.partial(clip_grad_norm_, max_norm=1.0)`.
    """

    def __init__(
        self,
        momentum: float = 0.9,
        nesterov: bool = False,
        gradient_clipping: float | Callable[[Tensor], Tensor] | None = None,
        momentum_masking: bool = True,
    ) -> None:
        function = gradient_clipping
        while isinstance(function, functools.partial):
            function = function.func
        if getattr(function, "exchanges", False):
            raise ConfigError(
                f"gradient_clipping={getattr(function, '__name__', function)!r} exchanges norms with all ranks, which would "
                "wait in the middle of backward and hang when one rank's gradient is not finite; give the norm itself, a "
                "number, which is scaled to one rank's share."
            )
        checked = DgcMemory(momentum, nesterov, momentum_masking, gradient_clipping)
        self.momentum, self.nesterov = checked.momentum, checked.nesterov
        self.momentum_masking, self.gradient_clipping = checked.momentum_masking, checked.gradient_clipping
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the method `dgc`."""
        names = ("momentum", "nesterov", "momentum_masking", "gradient_clipping")
        return {name: getattr(self, name) for name in names}

    def initialize(self, named_parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Check the parameters; their state is created at the first step."""
        unique(named_parameters)

    # Checkpoints --------------------------------------------------------------------------------------

    def serve(self, handle: Handle) -> None:
        """Use the state of this handle from now on."""
        self._handles.add(handle)

    @property
    def steps(self) -> int:
        """The largest number of steps of its handles."""
        return max((h.session.state.furthest for h in self._handles if not h.closed), default=0)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Momenta and accumulated gradients of this rank, by parameter. `handle.state_dict()` saves all state."""
        saved: dict[str, dict[str, Tensor]] = {key: {} for key in _SLOTS}
        for part in self._handle().state_dict()["parts"].values():
            for name, slots in part["memory"].items():
                for key, slot in _SLOTS.items():
                    if slot in slots:
                        saved[key][name] = slots[slot]
        return saved

    def load_state_dict(self, state_dict: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore `state_dict`; states saved by the original DGC are accepted."""
        handle = self._handle()
        state = handle.state_dict()
        for part in state["parts"].values():
            part["memory"] = {}
        for key, slot in _SLOTS.items():
            for name, tensor in state_dict[key].items():
                part = str(handle.method.resolve(name, handle.session.state.furthest))
                state["parts"][part]["memory"].setdefault(name, {})[slot] = tensor
                state["steps"].setdefault(name, 0)
        handle.load_state_dict(sealed(state))

    def _handle(self) -> Handle:
        served = [handle for handle in self._handles if not handle.closed]
        if len(served) != 1:
            raise ConfigError(
                f"this memory serves {len(served)} optimizers, and a handle owns all state; build the DistributedOptimizer "
                "first, or use state_dict() and load_state_dict() of the handle that grace.attach() returned."
            )
        return served[0]

    def __repr__(self) -> str:
        return f"DGCSGDMemory({', '.join(f'{key}={value!r}' for key, value in self.settings.items())})"


def unique(named_parameters: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Parameters by name; duplicate names are rejected, since state is stored by name."""
    found: dict[str, Any] = {}
    for pair in named_parameters:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ConfigError(
                f"{type(pair).__name__} found where a pair (name, parameter) is needed; pass model.named_parameters()."
            )
        name, parameter = pair
        if found.setdefault(name, parameter) is not parameter:
            raise ConfigError(
                f"two parameters are named {name!r}; state is stored by name, so names must differ."
            )
    return found
