"""Errors of local workers reach people as the workers meant them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
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


def stay(rank: int, world: int, emit: Emit, folder: str) -> None:
    (Path(folder) / str(rank)).write_text(str(os.getpid()))
    time.sleep(600)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    try:
        return (
            ") Z " not in Path(f"/proc/{process}/stat").read_text()
        )  # Z: ended, and not yet collected by anyone
    except OSError:  # ended just now, or a system without /proc
        return not Path("/proc/self").exists()


def _wait_for(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell that a parent has gone")
def test_workers_end_when_their_parent_was_killed(tmp_path: Path) -> None:
    """Also those that report nothing, and so never notice that nobody listens."""
    script = tmp_path / "killed.py"
    script.write_text(
        f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_workers import stay
from grace_dl.workers import run_workers

if __name__ == "__main__":
    run_workers(stay, 2, {str(tmp_path)!r})
"""
    )
    parent = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)
    written = [tmp_path / "0", tmp_path / "1"]
    try:
        _wait_for(lambda: all(path.exists() and path.read_text() for path in written), "workers start")
    finally:
        parent.kill()
        parent.wait()
    processes = [int(path.read_text()) for path in written]
    _wait_for(lambda: not any(map(_lives, processes)), f"workers {processes} end")
