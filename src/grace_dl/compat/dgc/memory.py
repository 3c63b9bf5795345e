"""`DGCSGDMemory`: the core's DGC memory under the name and argument order that DGC's users know."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from torch import Tensor

from ..errors import ConfigError
from ..memory.dgc import DgcMemory


class DGCSGDMemory(DgcMemory):
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
        super().__init__(momentum, nesterov, momentum_masking, gradient_clipping)

    def initialize(self, named_parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Make the state of these parameters now rather than at their first step."""
        for name, parameter in unique(named_parameters).items():
            self.slot(name, "m", parameter)
            if parameter.dim() > 1:
                self.slot(name, "v", parameter)


def unique(named_parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Parameters by name; two of one name are refused, since state is kept by name."""
    found: dict[str, Tensor] = {}
    for pair in named_parameters:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ConfigError(
                f"{type(pair).__name__} found where a pair (name, parameter) is needed; pass model.named_parameters()."
            )
        name, parameter = pair
        if found.setdefault(name, parameter) is not parameter:
            raise ConfigError(
                f"two parameters are named {name!r}; state is kept by name, so names must differ."
            )
    return found
