"""Resuming a run from the newest step for which every rank has a readable checkpoint."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..digest import digest
from ..errors import ConfigError, StateError
from .checkpoint import Checkpoints, Saved
from .conversion import converted
from .world import gather, share

FREE = (
    *(
        "train.num_epochs",
        "train.num_steps",
        "train.scheduler",
        "train.log_every",
        "train.evaluate_every",
        "train.metric",
    ),
    *("train.save_every_steps", "train.keep", "train.tensorboard", "train.save_path", "data", "device"),
)
"""Settings that may change when a run is resumed."""


def newest(
    checkpoints: Checkpoints, parameters: Collection[str], *, partial: bool = False
) -> dict[str, Any] | None:
    """The state to resume from, of the same step on every rank; None if there is none.

    Killed ranks may be one checkpoint apart, and a file may be corrupt: then all ranks use an older step. If they have
    no step in common, a run starts again only if it had not passed its first checkpoint. A checkpoint of a different number of
    ranks is converted. `partial`: if no step has a file of every rank, the newest one that any rank has is enough.
    """
    held = gather(checkpoints.files())
    found = {saved: ranks for saved, ranks in _ranks(held).items() if saved.step is not None}
    order = sorted(found, key=lambda saved: (saved.step, saved.ranks == checkpoints.ranks), reverse=True)
    for saved in order:
        if len(found[saved]) == saved.ranks:
            state = _load(checkpoints, saved, held, parameters)
            if state is not None:
                return state
    for saved in order if partial else ():
        state = _load(checkpoints, saved, held, parameters, partial=True)
        if state is not None:
            return state
    if len({saved.step for saved in found}) > 1:
        listed = "; ".join(f"step {saved.step}: ranks {found[saved]} of {saved.ranks}" for saved in order)
        raise StateError(
            f"{checkpoints.folder} has no step of which every rank has a readable checkpoint ({listed}); restore the "
            "missing files, or delete the run's folder or use another --suffix to start again."
        )
    return None


def best(
    checkpoints: Checkpoints, parameters: Collection[str], *, partial: bool = False
) -> dict[str, Any] | None:
    """The state with the best evaluation, else the newest."""
    held = gather(checkpoints.files())
    for saved, ranks in _ranks(held).items():
        if saved.step is None and len(ranks) == saved.ranks:
            state = _load(checkpoints, saved, held, parameters)
            if state is not None and len(set(gather(state["step"]))) == 1:
                return state
    return newest(checkpoints, parameters, partial=partial)


def _ranks(held: Sequence[set[tuple[Saved, int]]]) -> dict[Saved, list[int]]:
    """The checkpoints that any rank can reach, with the ranks whose file is there; in the same order everywhere."""
    found: dict[Saved, list[int]] = {}
    for saved, rank in sorted(set().union(*held), key=repr):
        found.setdefault(saved, []).append(rank)
    return found


def _load(
    checkpoints: Checkpoints,
    saved: Saved,
    held: Sequence[set[tuple[Saved, int]]],
    parameters: Collection[str],
    *,
    partial: bool = False,
) -> dict[str, Any] | None:
    """This rank's state of a checkpoint; None on every rank if one cannot read its file (all files, if `partial`)."""
    rank, size = checkpoints.rank, checkpoints.ranks
    if saved.ranks == size and not partial and all((saved, each) in files for each, files in enumerate(held)):
        state = checkpoints.load(checkpoints.folder / saved.name(rank))
        return state if all(gather(state is not None)) else None
    states: list[dict[str, Any] | None] = []
    for old in range(saved.ranks):
        reader = next((each for each, files in enumerate(held) if (saved, old) in files), None)
        state = checkpoints.load(checkpoints.folder / saved.name(old)) if rank == reader else None
        states.append(None if reader is None else share(state, reader))
        if states[-1] is None and not partial:
            return None
    if not any(states):
        return None
    same = saved.ranks == size and all(states)
    return states[rank] if same else converted(states, parameters, rank, size)


def check_replicas(common: Any) -> None:
    """Raise on every rank if ranks differ in what they must have in common: weights and optimizer states."""
    found = gather(digest(common))
    different = [rank for rank, other in enumerate(found) if other != found[0]]
    if different:
        raise StateError(
            f"after loading, ranks {different} have weights or optimizer states different from those of rank 0; delete the newest "
            "checkpoints of all ranks, and the run continues from those before."
        )


def check_config(saved: str, present: Mapping[str, Any], folder: object) -> None:
    """Reject settings that would make it a different run."""
    before, now = flatten(json.loads(saved)), flatten(present)
    changed = [
        f"{key}: {before.get(key)!r} then, {now.get(key)!r} now"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key) and not any(f"{key}.".startswith(f"{free}.") for free in FREE)
    ]
    if changed:
        raise ConfigError(
            f"{folder} holds a run with other settings ({'; '.join(changed)}); give this one a --suffix of its own, or delete "
            "that folder."
        )


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A tree of settings as one dictionary, by path.

    >>> flatten({"a": {"b": 1}, "c": 2})
    {'a.b': 1, 'c': 2}
    """
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found.update(flatten(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found
