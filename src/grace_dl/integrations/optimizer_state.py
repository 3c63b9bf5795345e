"""Loading into an optimizer of torch, all or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def restored_on_error(optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """A context that loads state: after an error, an optimizer's state and settings are those from before.

    Loading replaces tensors, so they are not copied here.
    """
    if optimizer is None:
        yield
        return
    state, groups = optimizer.state, optimizer.param_groups
    slots = {key: dict(held) if isinstance(held, dict) else held for key, held in state.items()}
    settings = [dict(group) for group in groups]
    try:
        yield
    except BaseException:
        state.clear()
        state.update(slots)
        for group, held in zip(groups, settings):
            group.clear()
            group.update(held)
        optimizer.state, optimizer.param_groups = state, groups
        raise
