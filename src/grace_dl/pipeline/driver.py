"""The driver: carries the buckets of one step through their rounds.

Each bucket is a generator (`Communicator.program`) that yields requests and finally a verdict. Round r of every bucket
uses channel r, in bucket order, so that all ranks issue the same collectives in the same order regardless of thread
timing; no collective starts from a completion callback. A first round is issued as soon as its bucket is full; later
rounds when `launch` or `finish` finds the previous one complete. Nothing is decoded, and no memory is committed, before
every bucket's verdict is known: a step is atomic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Protocol

from ..errors import GraceError
from ..telemetry import Stats
from ..transport.base import Handle, Transport
from .bucket import Bucket
from .request import Request, Verdict

Program = Generator[Request | Verdict, bool, None]


@dataclass(slots=True)
class _Task:
    program: Program
    round: int = -1
    handle: Handle | None = None
    verdict: Verdict | None = None


class Router(Protocol):
    """Provides the programs that exchange a bucket."""

    transport: Transport
    stats: Stats

    def programs(self, bucket: Bucket, step: int) -> Iterable[Program]:
        """The programs that together exchange `bucket` in training step `step`; the same on every rank."""
        ...


class StepDriver:
    """The buckets of one step in progress."""

    def __init__(self, router: Router, step: int) -> None:
        self._router = router
        self._step = step
        self._transport = router.transport
        self._stats = router.stats
        self._tasks: list[_Task] = []

    def launch(self, bucket: Bucket) -> None:
        """Compress a bucket and send its first round; advance earlier buckets that are ready."""
        self._stats.dense_bytes += bucket.nbytes
        for program in self._router.programs(bucket, self._step):
            task = _Task(program)
            self._tasks.append(task)
            self._advance(task)
        self._poll()

    def finish(self) -> bool:
        """Wait for everything, then decode. Returns False if a gradient was not finite."""
        self._wait()
        verdicts = [task.verdict for task in self._tasks if task.verdict is not None]
        errors = [error for verdict in verdicts for error in verdict.errors]
        if errors:
            self.discard()
            raise errors[0]
        finite = all(verdict.finite for verdict in verdicts)
        with self._stats.timed("decode"):
            for task in self._tasks:
                self._conclude(task, finite)
        self._tasks.clear()
        self._stats.steps += 1
        self._stats.skipped += not finite
        return finite

    def abandon(self) -> None:
        """Abort a step that all ranks abort at the same bucket, for example because backward raised on each.

        Which later rounds have begun depends on timing, so all are completed first; otherwise the next step's
        collectives would be matched with those of this one on other ranks.
        """
        self._tasks = [task for task in self._tasks if task.handle is not None or task.verdict is not None]
        try:
            with contextlib.suppress(GraceError):  # if ranks are gone, the next step reports it
                self._wait()
        finally:
            self.discard()

    def discard(self) -> None:
        """Abort the step: memories are restored to their state before it."""
        for task in self._tasks:
            task.program.close()
        self._tasks.clear()

    def _wait(self) -> None:
        """Run every bucket to its verdict."""
        while any(task.verdict is None for task in self._tasks):
            for task in self._tasks:
                if task.verdict is None:
                    assert task.handle is not None
                    with self._stats.timed("wait"):
                        task.handle.wait()
                    self._advance(task)

    def _poll(self) -> None:
        for place, task in enumerate(self._tasks):
            while task.verdict is None and task.handle is not None and task.handle.done():
                before = self._tasks[place - 1] if place else None
                if before is not None and before.verdict is None and before.round <= task.round:
                    return
                task.handle.wait()
                self._advance(task)

    def _advance(self, task: _Task) -> None:
        with self._stats.timed("compress"):
            request = next(task.program)
        if isinstance(request, Verdict):
            task.verdict = request
            task.handle = None
            return
        task.round += 1
        self._stats.collectives += 1
        self._stats.payload_bytes += request.payload_bytes
        self._stats.leaving_bytes += request.leaving_bytes(self._transport.size)
        task.handle = request.issue(self._transport, task.round)

    def _conclude(self, task: _Task, finite: bool) -> None:
        try:
            task.program.send(finite)
        except StopIteration:
            return
        raise AssertionError("a program must end with its verdict")
