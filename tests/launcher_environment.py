"""The environment that launchers give, for functions that ranks of the pool run."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def as_torchrun(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run `function(rank, world, ...)` with the variables that torchrun sets on one machine."""

    @functools.wraps(function)
    def run(rank: int, world: int, *arguments: Any) -> Any:
        variables: dict[str, str | None] = {
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(world),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "none",
        }
        with changed(variables):
            return function(rank, world, *arguments)

    return run


def without_launcher() -> contextlib.AbstractContextManager[None]:
    """A context without the variables of any launcher."""
    return changed({"RANK": None, "WORLD_SIZE": None})


@contextlib.contextmanager
def changed(variables: Mapping[str, str | None]) -> Iterator[None]:
    """A context with these variables, None for those to remove; afterwards all are as before, whatever was set in it."""
    before = dict(os.environ)
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
