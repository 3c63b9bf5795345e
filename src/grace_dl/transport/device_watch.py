"""Collectives that run on a device, as with NCCL: waiting for them does not block the host, and does not raise.

The host waits where it reads their results. It polls until they are complete, and gives up before the time limit of the
process group is over, when torch's watchdog ends the process. Meanwhile it looks in the store for the note of a rank
that has left the step because of an error: the others would wait for it in vain.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import PeerError

LOOK_SECONDS = 1.0
"""How long the host waits before it looks for a note, and between two looks."""

SHARE = 0.9
"""Of the time limit of the process group, after which a collective is given up."""

_NONE = "-"


class Running(Protocol):
    """A collective on a device."""

    what: str
    issued: float
    """When, in seconds of `time.monotonic`."""
    step: int
    """The step that it is part of."""

    def done(self) -> bool: ...


class DeviceWatch:
    """The collectives on a device of one transport and of its groups of ranks. `timeout`: that of the process group."""

    def __init__(self, rank: int, timeout: Callable[[], datetime.timedelta]) -> None:
        self.step = 0
        """The number of steps that have begun, the same on all ranks; a note is valid in its step only."""
        self.failure = ""
        """Why a collective has failed. The device waits for it, perhaps for ever, and no value can be read from it."""
        self._rank = rank
        self._timeout = timeout
        self._store: Any = None
        self._key = ""
        self._running: list[Running] = []
        self._noted = False

    def connect(self, store: Any, label: str) -> None:
        """Use a store for notes; `label` identifies the transport on all its ranks."""
        self._store, self._key = store, f"{label}/left"

    def begin_step(self) -> None:
        """A step begins; raises `PeerError` if a collective of an earlier one has failed."""
        if self.failure:
            raise PeerError(
                f"{self.failure} The device still waits, so no step can follow: start the ranks again."
            )
        self.step += 1
        if self._running:  # of a step that was given up; notes on that one do not matter any more
            for collective in self._running:
                collective.step = self.step
            self.complete()

    def add(self, collective: Running) -> None:
        """Watch a collective."""
        self._running.append(collective)

    def complete(self) -> None:
        """Block the host until all collectives are complete; raises `PeerError` if they cannot be."""
        begin = look = time.monotonic()
        try:
            for collective in self._running:
                while not collective.done():
                    now = time.monotonic()
                    if now > look + LOOK_SECONDS:
                        self._look(collective)
                        look = now
                    self._check_time(collective, now)
                    # Late by a small part of what the wait has taken.
                    time.sleep(min(max((now - begin) / 64, 2e-5), 1e-2))
        except PeerError as error:
            self.failure = str(error)
            raise
        finally:
            self._running.clear()

    def _check_time(self, collective: Running, now: float) -> None:
        limit = SHARE * self._timeout().total_seconds()
        if now > collective.issued + limit:
            raise PeerError(
                f"{collective.what} did not finish in {limit:g} s. Another rank died, failed or is stuck; look at its log. "
                f"(The limit is {SHARE:.0%} of the time limit of the process group: init_process_group(timeout=...).)"
            )

    def _look(self, collective: Running) -> None:
        if self._store is None:
            return
        try:
            # Unlike `get`, this does not wait for the key.
            found = self._store.compare_set(self._key, _NONE, _NONE).decode()
        except RuntimeError as error:
            raise PeerError(
                f"{collective.what} did not finish, and the store does not answer: {error}. The process that serves it "
                "(usually rank 0) has ended; look at its log."
            ) from error
        note = {} if found == _NONE else json.loads(found)
        if note.get("step", -1) >= collective.step:
            raise PeerError(
                f"{collective.what} will not finish: rank {note['rank']} has left the step ({note['why']}); look at its log."
            )

    def leave(self, why: str) -> None:
        """Tell the other ranks that this one takes no further part in the step."""
        if self._store is None:
            return
        note = json.dumps({"rank": self._rank, "step": self.step, "why": why[:500]})
        with contextlib.suppress(RuntimeError):  # without a store, they find out by the time limit
            self._store.set(self._key, note)
            self._noted = True

    def close(self) -> None:
        """Delete this rank's note."""
        if self._noted:
            with contextlib.suppress(RuntimeError):
                self._store.delete_key(self._key)
