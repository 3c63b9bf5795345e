"""`DGCSGD`: the optimizer that goes with DGC's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from ...errors import ConfigError


class DGCSGD(torch.optim.Optimizer):
    """SGD whose gradients come with momentum from the memory; only the weight decay gets its momentum here.

    Decay is added after the average, so that it is neither compressed nor delayed. Both momenta are linear in their
    inputs, so their sum is that of plain SGD: without compression the two optimizers are equivalent.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = DGCSGD([weight], lr=0.1, momentum=0.9, weight_decay=0.01)
    >>> weight.grad = torch.ones(2)
    >>> optimizer.step()
    >>> weight.tolist()
    [0.8989..., 0.8989...]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        groups: Any = list(params) if lr is None else params
        if lr is None and not all(isinstance(group, dict) and "lr" in group for group in groups):
            raise TypeError("DGCSGD() needs lr, as an argument or in every parameter group")
        for name, value in (
            ("lr", 0.0 if lr is None else lr),
            ("momentum", momentum),
            ("weight_decay", weight_decay),
        ):
            if not value >= 0:
                raise ConfigError(f"{name}={value!r} must not be negative.")
        if nesterov and (momentum == 0 or dampening != 0):
            raise ConfigError(
                f"nesterov needs momentum and no dampening, but momentum={momentum!r} and dampening={dampening!r} were given."
            )
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take one step; returns the result of `closure`, if any."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if group["weight_decay"]:
                    parameter.add_(self._decay(parameter, group), alpha=-group["lr"])
                parameter.add_(parameter.grad, alpha=-group["lr"])
        return loss

    def _decay(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """The decay term with its own momentum, computed before the parameter is updated."""
        decay = parameter * group["weight_decay"]
        momentum = group["momentum"]
        if not momentum:
            return decay
        state = self.state[parameter]
        buffer = state.get("momentum_buffer")
        if buffer is None:
            buffer = state["momentum_buffer"] = decay.clone()
        else:
            buffer.mul_(momentum).add_(decay, alpha=1 - group["dampening"])
        return decay.add_(buffer, alpha=momentum) if group["nesterov"] else buffer
