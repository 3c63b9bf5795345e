"""The settings of an optimizer whose ranks exchange momenta, checked when it is created."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..algebra.base import Method
from ..communicator.state import State
from ..errors import ConfigError
from ..names import canonical_names
from ..settings import number
from ..transport.local import LocalTransport

Params = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]
"""Parameters as optimizers take them, with or without names; groups may have settings of their own."""


def separated(params: Params) -> tuple[list[Any], dict[Tensor, str]]:
    """Parameters or groups for torch's optimizer, and the names that were given."""
    names: dict[Tensor, str] = {}

    def bare(items: Any) -> list[Any]:
        listed = [items] if isinstance(items, Tensor) else list(items)
        pairs = [item for item in listed if isinstance(item, tuple)]
        if len(pairs) not in (0, len(listed)):
            raise ConfigError("some parameters have names and some have none; pass model.named_parameters().")
        names.update({parameter: name for name, parameter in pairs})
        return [parameter for _, parameter in pairs] if pairs else listed

    if isinstance(params, Tensor):
        raise ConfigError("params is one tensor; pass model.named_parameters(), or a list.")
    given: list[Any] = list(params)
    if given and all(isinstance(item, Mapping) for item in given):
        groups = [{**item, "params": bare(item["params"])} for item in given]
    else:
        groups = bare(given)
    if not groups:
        raise ConfigError("there are no parameters to optimize; pass model.named_parameters().")
    return groups, dict(zip(names, canonical_names(list(names.values()))))


def check_names(names: Sequence[str]) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(
            f"two parameters are named {twice[0]!r}; state is kept by name, so names must differ."
        )


def check_settings(group: Mapping[str, Any]) -> None:
    number("lr", group["lr"], "the learning rate", least=0)
    number("eps", group["eps"], "added to the root of the variance; 1e-8 is usual", above=0)
    number("weight_decay", group["weight_decay"], "decoupled, as in AdamW; 0 is none", least=0)
    betas = group["betas"]
    if not isinstance(betas, (list, tuple)) or len(betas) != 2:
        raise ConfigError(
            f"betas={betas!r} must be two numbers: of the momentum and of the variance, as (0.9, 0.999)."
        )
    number("betas[0]", betas[0], "the weight of the previous momentum; 0.9 is usual", least=0, below=1)
    number("betas[1]", betas[1], "the weight of the previous variance; 0.999 is usual", least=0, below=1)


def check_scaled(method: Method) -> None:
    """Raise unless results of a method are averages."""
    for part in method.parts():
        if not part.codec.build(LocalTransport(), State()).compressor.average:
            raise ConfigError(
                f"{part} votes on signs and has no scale, but Adam needs the average of momenta; use efsignsgd:1.0 (signs with a "
                "scale), onebit, or another method that averages."
            )
