"""Errors of local workers reach people as the workers meant them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from grace_dl.errors import ConfigError, GraceError, PeerError
from grace_dl.workers import Emit, WorkerError, run_workers


class Odd(GraceError):
    """Cannot be made from its message."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def refuse(rank: int, world: int, emit: Emit, how: str) -> Any:
    if how == "odd":
        raise Odd(1, 2)
    if rank == 1:
        raise PeerError("another rank has left")
    time.sleep(0.5)
    if how == "config":
        raise ConfigError("width=0 must be positive.")
    if how == "bug":
        raise ZeroDivisionError("unwell")
    raise PeerError("another rank has left")


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("config", ConfigError, "^width=0 must be positive.$"),
        ("odd", WorkerError, "^1 and 2$"),
        ("bug", WorkerError, "(?s)worker 0 failed:.*unwell"),
        ("peers", PeerError, "^another rank has left$"),
    ],
)
def test_the_worker_that_knows_is_heard(how: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        run_workers(refuse, 2, how)
