"""The saved state of a session: its fields, what of it a rank loads, and its conversion to a different number of ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from . import catalog, digest
from .communicator.base import Communicator, Joined
from .communicator.state import State
from .errors import StateError
from .memory.conversion import dealt
from .names import canonical
from .transport import Transport

FORMAT = 5
_FIELDS = ("rank", "world_size", "loss_scale", "steps", "carried", "moved", "communicators", "parts")
_SLICE = re.compile(r"(.*?)((?:#\d+)?'?)", re.DOTALL)
"""A key of a memory: the parameter's name, and which slice of it."""

Saved = Mapping[str, Any]


def taken(
    method: str, transport: Transport, state: State, communicators: Mapping[str, Communicator]
) -> dict[str, Any]:
    """The fields of this rank's state; `communicators` by the text of their part of the method."""
    return {
        "format": FORMAT,
        "method": method,
        "rank": transport.rank,
        "world_size": transport.size,
        "loss_scale": state.loss_scale,
        "steps": dict(state.steps),
        "carried": {name: owed.clone() for name, owed in state.carried.items()},
        "moved": sorted(state.moved),
        "communicators": {text: found.saved_as for text, found in communicators.items()},
        "parts": {
            text: {label: memory.state_dict() for label, memory in found.memories().items()}
            for text, found in communicators.items()
        },
    }


def fitting(
    state: Saved | Sequence[Saved],
    method: str,
    communicators: Mapping[str, Communicator],
    transport: Transport,
    names: Collection[str] | None = None,
    *,
    partial: bool = False,
) -> Saved:
    """The state to load on this rank, from its own or a list of those of all ranks; raises if it does not match.

    `names` are the parameters that exist here, if that is known. `partial`: states may be missing from the list.
    """
    rank, size = transport.rank, transport.size
    states = listed(state)
    several = states[0] is not state
    for each in states:
        check(each, method)
        _check_parts(each, method, communicators)
    try:
        if several:
            if partial:
                states = completed(states, communicators)
            states = ordered(states)
            if len(states) == size and _misplaced(states[rank], communicators) is None:
                chosen = states[rank]
            else:
                chosen = converted(states, communicators, rank, size)
        else:
            (chosen,) = states
            check_rank(chosen, rank, size)
            misplaced = _misplaced(chosen, communicators)
            if misplaced is not None:
                raise StateError(
                    f"{misplaced}; pass a list with the states of all ranks, and they are converted."
                )
        chosen = adapted(chosen, communicators)
        return chosen if names is None else renamed(chosen, names)
    except (AttributeError, TypeError, KeyError, RuntimeError) as error:
        raise damaged(error) from error


def listed(state: Saved | Sequence[Saved]) -> list[Any]:
    """The states in a list of those of several ranks, or a single state alone; never empty."""
    return list(state) if isinstance(state, (list, tuple)) and state else [state]


def damaged(error: Exception) -> StateError:
    """The error for a state that raised `error` where it was read."""
    return StateError(f"the saved state is damaged ({error!r}); no state_dict() made it.")


def _misplaced(state: Saved, communicators: Mapping[str, Communicator]) -> str | None:
    """Why the state of a rank with this number does not belong to this rank; None if it does."""
    reasons = (found.misplaced(state["parts"][text]) for text, found in communicators.items())
    return next((reason for reason in reasons if reason is not None), None)


def _check_parts(state: Saved, method: str, communicators: Mapping[str, Communicator]) -> None:
    here = {text: sorted(found.memories()) for text, found in communicators.items()}
    there = {text: sorted(memories) for text, memories in state["parts"].items()}
    # The default communicator depends on the number of ranks; what it saved can be converted.
    if here.keys() != there.keys() or any("memory" not in labels for labels in there.values()):
        raise StateError(f"the saved state holds memories {there}, but {method} has {here}.")


def check(state: Any, method: str) -> None:
    """Raise unless `state` is the undamaged state of a session with this method, of whichever rank."""
    if not isinstance(state, Mapping):
        raise StateError(f"a {type(state).__name__} is no saved state; pass what state_dict() returned.")
    for field, mine in (("format", FORMAT), ("method", method)):
        if state.get(field) != mine:
            raise StateError(
                f"the saved state has {field}={state.get(field)!r}, this handle has {mine!r}; attach the method that "
                "was saved, load, and then switch() to another."
            )
    missing = [field for field in _FIELDS if field not in state]
    if missing:
        raise StateError(
            f"the saved state lacks {', '.join(missing)}: it is damaged, or no state_dict() made it."
        )
    digest.check(state, f"the saved state of rank {state['rank']}")


def check_rank(state: Saved, rank: int, size: int) -> None:
    """Raise if a state belongs to another rank, or to a job with a different number of ranks."""
    saved = (state["rank"], state["world_size"])
    if saved == (rank, size):
        return
    remedy = (
        "every rank must save its own state, and load its own"
        if saved[1] == size
        else "pass a list with the states of all ranks, and they are converted"
    )
    raise StateError(
        f"this is the state of rank {saved[0]} of {saved[1]}, but here is rank {rank} of {size}; {remedy}."
    )


def check_size(name: str, size: int, residuals: Iterable[Tensor | None]) -> None:
    """Raise if a parameter's residual is of a parameter with a different number of elements."""
    for owed in residuals:
        if owed is not None and owed.numel() != size:
            raise StateError(
                f"the saved state is of another model: what {name!r} owes has {owed.numel()} elements, the parameter {size}; load it "
                "into the model that was saved."
            )


def ordered(states: Sequence[Saved]) -> list[Saved]:
    """The states of all ranks of a job in the order of ranks; raises unless there is one of each, all of the same step."""
    first = states[0]
    found = {state["rank"]: state for state in states}
    size, ranks = first["world_size"], sorted(found)
    if len(states) != size or ranks != list(range(size)):
        raise StateError(
            f"{len(states)} states of ranks {ranks} were given, but they are of a job with {size} ranks; pass the state of "
            "every rank once."
        )
    for state in states:
        for field in ("world_size", "steps", "loss_scale"):
            if state[field] != first[field]:
                raise StateError(
                    f"the states of ranks {first['rank']} and {state['rank']} differ in {field}: they were not saved at "
                    "the same step; pass states that were."
                )
    return [found[rank] for rank in ranks]


def completed(states: Sequence[Saved], communicators: Mapping[str, Communicator]) -> list[Saved]:
    """The states with stand-ins for ranks that are gone: they owe nothing, and their momenta are those of a rank that is there.

    Residuals of the other ranks thereby keep the weight that they had in the average over all ranks.
    """
    held = {state["rank"] for state in states}
    missing = [rank for rank in range(states[0]["world_size"]) if rank not in held]
    return [
        *states,
        *(_without_residuals(states[rank % len(states)], communicators, rank) for rank in missing),
    ]


def _without_residuals(state: Saved, communicators: Mapping[str, Communicator], rank: int) -> Saved:
    parts = {
        text: {
            # Further memories hold residuals only: those of slices that a rank owns in an all-to-all.
            label: {key: communicators[text].memory.without_residual(slots) for key, slots in saved.items()}
            if label == "memory"
            else {}
            for label, saved in memories.items()
        }
        for text, memories in state["parts"].items()
    }
    return {**state, "rank": rank, "carried": {}, "parts": parts}


def converted(
    states: Sequence[Saved], communicators: Mapping[str, Communicator], rank: int, size: int
) -> Saved:
    """The state of `rank` of `size`, from the states of all ranks, in order; `communicators` are those of this rank."""
    names = dict.fromkeys(name for state in states for name in state["carried"])
    carried = {name: dealt([state["carried"].get(name) for state in states], rank, size) for name in names}
    parts = {}
    for text, communicator in communicators.items():
        old = [_joined(state, text, communicator) for state in states]
        parts[text], owed = communicator.converted(old, rank, size)
        for name, share in owed.items():
            carried[name] = carried[name] + share if name in carried else share
    ways = {text: communicator.saved_as for text, communicator in communicators.items()}
    place = {"rank": rank, "world_size": size}
    moved = sorted({*states[0]["moved"], *states[0]["steps"]})  # some may carry more than they did
    return {**states[0], **place, "carried": carried, "moved": moved, "communicators": ways, "parts": parts}


def adapted(state: Saved, communicators: Mapping[str, Communicator]) -> Saved:
    """The state of one rank, for communicators other than those that saved it."""
    if all(_way(state, text) == communicator.saved_as for text, communicator in communicators.items()):
        return state
    same = {"rank": state["rank"], "world_size": state["world_size"]}
    return {**converted([state], communicators, 0, 1), **same}


def _joined(state: Saved, text: str, communicator: Communicator) -> Joined:
    # Of two levels the outer one is named last.
    way = catalog.COMMUNICATORS.get(_way(state, text).split()[-1], type(communicator))
    return communicator.joined_by(way, state["parts"][text], state["rank"], state["world_size"])


def _way(state: Saved, text: str) -> str:
    """The communicator that saved a part."""
    return state["communicators"][text]


def renamed(state: Saved, known: Collection[str]) -> Saved:
    """The state with the names that parameters have here; names that no parameter has are rejected.

    A name changes when a model is wrapped or unwrapped, as by `torch.compile`.
    """
    by_canonical = {canonical(name): name for name in known}
    unknown: dict[str, None] = {}

    def rename(key: str) -> str:
        match = _SLICE.fullmatch(key)
        name, part = match.groups() if match else (key, "")
        here = name if name in known else by_canonical.get(canonical(name))
        if here is None:
            unknown[name] = None
        return f"{here}{part}"

    result = {
        **state,
        "steps": _keys(state["steps"], rename),
        "carried": _keys(state["carried"], rename),
        "moved": [rename(name) for name in state["moved"]],
        "parts": {
            text: {label: _keys(memory, rename) for label, memory in memories.items()}
            for text, memories in state["parts"].items()
        },
    }
    if "auto" in state:
        chosen = {
            name: text
            for name, text in state["auto"]["exceptions"].items()
            if canonical(name) in by_canonical
        }
        result["auto"] = {**state["auto"], "exceptions": _keys(chosen, rename)}
    if unknown:
        raise StateError(
            f"the saved state holds parameters that are not here: {', '.join(list(unknown)[:8])}"
            f"{', ...' if len(unknown) > 8 else ''}; attach to the model that was saved, with the names it had then."
        )
    return result


def _keys(saved: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    return {rename(key): value for key, value in saved.items()}
