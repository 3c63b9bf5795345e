"""One run at a time writes to a folder."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import ConfigError
from .world import World, gather

_PATIENCE = 5.0
"""Seconds to wait: the processes of a run that was killed may take a moment to end."""


@contextmanager
def locked(folder: Path, world: World) -> Iterator[None]:
    """Hold the lock of a run's folder; raises on every rank if another run holds it.

    Rank 0 takes it. The operating system releases it when the process ends, however it ends.
    """
    file, holder = (None, None) if world.rank else _acquire(folder)
    try:
        held = gather(holder)[0]
        if held is not None:
            raise ConfigError(
                f"{folder} is in use by another run ({held}); wait until it has ended, or give this one a --suffix of its own."
            )
        yield
    finally:
        if file is not None:
            file.close()


def _acquire(folder: Path) -> tuple[IO[str] | None, str | None]:
    """The locked file; or None and who holds it."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None, None
    folder.mkdir(parents=True, exist_ok=True)
    file = open(folder / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 (open as long as the run)
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.seek(0)
                holder = file.read().strip() or "its name is not known"
                file.close()
                return None, holder
            time.sleep(0.1)
        except OSError:  # a file system without locks
            break
    file.seek(0)
    file.truncate()
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file, None
