"""State of local steps: an exchange that is under way, and the part of a saved state, checked before anything is loaded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..digest import digest
from ..errors import StateError
from ..names import canonical
from ..pipeline.bucket import Bucket
from ..pipeline.driver import StepDriver
from ..saved_state import damaged
from .local_parameters import gradient_like, is_sharded, shard

_FIELDS = ("steps", "every", "fragments", "anchor", "buffers", "outer", "arrived")


_IN_FLIGHT = ("fragment", "due", "averaged", "finite")


@dataclass(slots=True)
class InFlight:
    """The exchange of one fragment between its start and the step that applies it."""

    fragment: int
    due: int
    """The local step after which it is applied."""
    buckets: list[Bucket]
    averaged: bool
    """Whether parameters travel, not differences."""
    driver: StepDriver | None = None
    """None once the results have arrived."""
    finite: bool = True
    results: dict[str, Tensor] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """A copy of what was received; for use once results have arrived."""
        fields = {name: getattr(self, name) for name in _IN_FLIGHT}
        return {**fields, "results": {name: result.clone() for name, result in self.results.items()}}


class Expected(NamedTuple):
    """What a saved state must match."""

    every: int
    fragments: int
    has_outer: bool
    anchor: Mapping[str, Tensor]
    buffers: Sequence[Tensor]


def checked(state: Any, mine: Expected) -> Mapping[str, Any]:
    """The part of a saved state that belongs to local steps; raises unless it matches."""
    local = state.get("local") if isinstance(state, Mapping) else None
    if not isinstance(local, Mapping) or any(name not in local for name in _FIELDS):
        raise StateError("the saved state has no local steps; pass what LocalSteps.state_dict() returned.")
    for name, value in (("every", mine.every), ("fragments", mine.fragments)):
        if local[name] != value:
            raise StateError(
                f"the saved state has {name}={local[name]}, this object has {value}; use the same."
            )
    if (local["outer"] is None) == mine.has_outer:
        raise StateError(
            "the saved state and this object do not both have an outer optimizer; give `outer` as before."
        )
    local = {**local, "anchor": _renamed(local["anchor"], mine.anchor)}
    here, there = _shapes(mine.anchor, mine.buffers), _shapes(local["anchor"], list(local["buffers"]))
    differing = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
    if differing:
        raise StateError(
            f"the saved state is of another model: {', '.join(differing[:3])} differ; load it into the same model."
        )
    return local


class Copies(NamedTuple):
    """Copies of saved tensors, with the dtypes and devices that they have here."""

    steps: int
    anchor: dict[str, Tensor]
    buffers: list[Tensor]
    arrived: dict[str, Any] | None
    """An exchange that was not yet applied: its fields, and its results."""


def copied(
    local: Mapping[str, Any],
    mine: Expected,
    parameters: Mapping[str, Tensor],
    fragments: Sequence[Sequence[str]],
) -> Copies:
    """What to load from the `checked` part of a saved state; raises if it is damaged. Changes nothing."""
    try:
        arrived = None if local["arrived"] is None else dict(local["arrived"])
        if arrived is not None:
            names = fragments[arrived["fragment"]]
            results = _renamed(arrived["results"], parameters)
            arrived = {name: arrived[name] for name in _IN_FLIGHT}
            arrived["results"] = {name: _like(parameters[name], results[name]) for name in names}
        return Copies(
            int(local["steps"]),
            {name: _like(kept, local["anchor"][name]) for name, kept in mine.anchor.items()},
            [_like(kept, saved) for kept, saved in zip(mine.buffers, local["buffers"])],
            arrived,
        )
    except (AttributeError, TypeError, ValueError, KeyError, IndexError, RuntimeError) as error:
        raise damaged(error) from error


def _renamed(saved: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """By the names that parameters have here: older states have names with the components of wrappers."""
    names = {canonical(name): name for name in known}
    return {names.get(canonical(name), name): value for name, value in saved.items()}


def _like(mine: Tensor, saved: Tensor) -> Tensor:
    return torch.empty_like(mine).copy_(saved)


def outer_state(outer: torch.optim.Optimizer | None) -> dict[str, Any] | None:
    """The state of the outer optimizer; of what FSDP2 shards, the shard of this rank, which knows nothing of process groups."""
    return None if outer is None else _each_slot(outer.state_dict(), lambda place, tensor: shard(tensor))


def load_outer(outer: torch.optim.Optimizer | None, saved: Any) -> None:
    """Load the state of the outer optimizer, which then shares no memory with what was saved."""
    if outer is None:
        return
    parameters = [parameter for group in outer.param_groups for parameter in group["params"]]

    def sharded(place: int, tensor: Tensor) -> Tensor:
        mine = parameters[place]
        same = is_sharded(mine) and not is_sharded(tensor) and shard(mine).shape == tensor.shape
        return gradient_like(mine, tensor) if same else tensor

    try:
        outer.load_state_dict(_each_slot(copy.deepcopy(saved), sharded))
    except Exception as error:
        raise StateError(
            f"the outer optimizer cannot load its part of the saved state: {error}; give `outer` the class and the parameter "
            "groups that it had when the state was saved."
        ) from error


def _each_slot(state: Mapping[str, Any], change: Callable[[int, Tensor], Tensor]) -> dict[str, Any]:
    """The state of an optimizer with all tensors changed; `change` is given the place of the parameter and the tensor."""

    def changed(place: int, held: Any) -> Any:
        if not isinstance(held, Mapping) or not isinstance(place, int):  # belongs to no parameter
            return held
        return {slot: change(place, v) if isinstance(v, Tensor) else v for slot, v in held.items()}

    return {**state, "state": {place: changed(place, held) for place, held in state["state"].items()}}


def _shapes(anchor: Mapping[str, Any], buffers: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    named = {**anchor, **{f"buffer {place}": buffer for place, buffer in enumerate(buffers)}}
    return {name: tuple(getattr(tensor, "shape", ())) for name, tensor in named.items()}


def check_common(states: Sequence[Mapping[str, Any]]) -> None:
    """Raise unless the states of several ranks are of the same step and have the same anchor and outer optimizer."""
    found = [digest([local[name] for name in ("steps", "anchor", "outer")]) for local in states]
    different = [place for place, other in enumerate(found) if other != found[0]]
    if different:
        raise StateError(
            f"states {different} of the list were not saved after the same exchange as the first: the anchors differ; pass states of "
            "the same step."
        )
