"""The checkpoint of a run that continues on a different number of ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ..digest import digest
from ..errors import StateError
from ..telemetry import Stats

Checkpoint = Mapping[str, Any]


def converted(
    old: Sequence[Checkpoint | None], parameters: Collection[str], rank: int, size: int
) -> dict[str, Any]:
    """The checkpoint of `rank` of `size`, from those of all old ranks, in order.

    Weights and optimizer are the same on all ranks; running statistics are averaged. The states of all handles are kept, for
    `Handle.load_state_dict` to convert. Random generators start again.

    With local steps, ranks have moved away from their common anchor, and checkpoints of ranks that are gone may be None.
    Weights and optimizer states of those that are there are averaged: so is then the change since the last exchange.
    """
    held = [state for state in old if state is not None]
    first = held[0]
    handles = [state["exchange"]["handle"] for state in held]
    local = all(isinstance(handle, Mapping) and "local" in handle for handle in handles)
    if not local:
        _check_replicas(held, parameters)
    mine = old[rank] if rank < len(old) else None
    stats = asdict(Stats()) if mine is None else mine["exchange"]["stats"]
    meters = [state["meter"] for state in old[rank::size] if state is not None]
    return {
        **first,
        "model": _averaged([state["model"] for state in held]),
        "optimizer": _averaged([state["optimizer"] for state in held]) if local else first["optimizer"],
        "exchange": {"stats": stats, "handle": None if None in handles else handles},
        "randomness": None,
        "meter": torch.stack([torch.zeros_like(first["meter"]), *meters]).sum(0),
        "marks": first["marks"] if rank == 0 else {key: stats[key] for key in first["marks"]},
    }


def _averaged(old: Sequence[Any]) -> Any:
    """The mean of tensors in equal structures; everything else is that of the first."""
    first = old[0]
    if isinstance(first, Mapping):
        # Parameters that have had no gradient yet have no state on some ranks.
        keys = dict.fromkeys(key for each in old for key in each)
        return {key: _averaged([each[key] for each in old if key in each]) for key in keys}
    if isinstance(first, Tensor):
        return _mean(old)
    return first


def _mean(old: Sequence[Tensor]) -> Tensor:
    if not old[0].is_floating_point() or all(torch.equal(tensor, old[0]) for tensor in old):
        return old[0]
    return torch.stack(list(old)).mean(0)


def _check_replicas(old: Sequence[Checkpoint], parameters: Collection[str]) -> None:
    found = [
        digest([{name: state["model"][name] for name in parameters}, state["optimizer"], state["step"]])
        for state in old
    ]
    for rank, other in enumerate(found):
        if other != found[0]:
            raise StateError(
                f"the checkpoints of ranks 0 and {rank} have different weights or optimizer states; replicas must be the same. "
                "Delete the newest step, and the run continues from the one before."
            )
