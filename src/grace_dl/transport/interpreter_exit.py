"""Lets the engine's threads finish before the interpreter ends.

A thread of Gloo frees the tensors of a collective after the collective is complete, and needs the interpreter lock for
that. If the interpreter begins to shut down meanwhile, CPython ends the thread by unwinding its stack, C++ does not
permit that, and a job that did well aborts ("terminate called without an active exception").
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
from pathlib import Path

_PAUSE = 0.005
_LIMIT = 1.0
_CALM = 3
"""How many times in a row no thread may be found running."""


@functools.cache
def wait_for_threads_at_exit() -> None:
    """Before the interpreter shuts down, wait until no thread is freeing tensors. Registered once per process."""
    atexit.register(_wait_for_threads)


def _wait_for_threads() -> None:
    calm, end = 0, time.monotonic() + _LIMIT
    while calm < _CALM and time.monotonic() < end:
        time.sleep(_PAUSE)  # without the interpreter lock, so that a thread that waits for it goes on
        calm = 0 if _others_run() else calm + 1


def _others_run() -> bool:
    """Whether another thread of this process is running or ready to run; False where the system does not tell."""
    own = str(threading.get_native_id())
    try:
        others = [task for task in os.listdir("/proc/self/task") if task != own]
    except OSError:
        return False
    return any(_state(task) == "R" for task in others)


def _state(task: str) -> str:
    try:
        # The name, in parentheses, may contain anything; the state follows it.
        return Path(f"/proc/self/task/{task}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:  # it has ended
        return ""
