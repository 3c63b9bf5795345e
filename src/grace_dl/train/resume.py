"""Resuming a run from the newest step for which every rank has a readable checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..errors import ConfigError, StateError
from .checkpoint import Checkpoints
from .world import World

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


def newest(checkpoints: Checkpoints) -> dict[str, Any] | None:
    """The state to resume from, of the same step on every rank; None if there is none.

    Killed ranks may be one checkpoint apart, and a file may be corrupt: then all ranks use an older step. If they have
    no step in common, a run starts again only if it had not passed its first checkpoint.
    """
    held = _all(checkpoints.steps())
    for step in sorted(set.intersection(*map(set, held)), reverse=True):
        state = checkpoints.load(checkpoints.path(step))
        if all(_all(state is not None)):
            return state
    if len(set().union(*held)) > 1:
        found = "; ".join(f"rank {rank}: steps {steps or 'none'}" for rank, steps in enumerate(held))
        raise StateError(
            f"{checkpoints.folder} has no step of which every rank has a readable checkpoint ({found}); restore the "
            "missing files, or delete the run's folder or use another --suffix to start again."
        )
    return None


def best(checkpoints: Checkpoints) -> dict[str, Any] | None:
    """The state with the best evaluation, else the newest."""
    state = checkpoints.load(checkpoints.best) if checkpoints.best.exists() else None
    if all(_all(state is not None)) and len(set(_all(state and state["step"]))) == 1:
        return state
    return newest(checkpoints)


def _all(value: Any) -> list[Any]:
    if not dist.is_initialized():
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def check_world(checkpoints: Checkpoints, world: World, record: Path) -> None:
    """Reject a different number of ranks than in the run's `record`: it determines the batches of each rank."""
    size = json.loads(record.read_text("utf-8"))["world"]["size"] if record.exists() else None
    sizes = {before for before in _all(size) if before is not None}
    if sizes - {world.size} and any(_all(checkpoints.steps())):
        raise ConfigError(
            f"{record.parent} holds a run of {min(sizes - {world.size})} ranks, this one has {world.size}; start as many as then, "
            "give this one a --suffix of its own, or delete that folder."
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
