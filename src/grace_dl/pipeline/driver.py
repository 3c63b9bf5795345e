"""The driver: carries the buckets of one step through their rounds.

Each bucket is a generator (`Communicator.program`) that yields requests and finally a verdict. Round r of every bucket
uses channel r, in bucket order, so that all ranks issue the same collectives in the same order on each channel,
regardless of thread timing; no collective starts from a completion callback. A first round is issued as soon as its
bucket is full; later rounds when `launch` or `finish` finds the previous one complete. Nothing is decoded, and no memory
is committed, before every bucket's verdict is known: a step is atomic. After it, a program may pass on what it decoded,
with further requests, again in bucket order.

Collectives that run on a device wait for each other there, whatever their channel. For buckets on a device, and on
transports that say so (`Transport.one_order`), all rounds therefore use channel 0, and later rounds are issued in
`finish`, in an order that does not depend on timing.

Where several handles are at work in one backward pass, ranks that take different branches of a model wait for different
handles first. A driver that waits therefore lets the others of its thread go on: handles have channels of their own.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Protocol

from ..errors import GraceError, LayoutError, PeerError
from ..telemetry import Stats
from ..transport.base import Handle, Transport
from .bucket import Bucket
from .request import Grouped, Idle, Request, Verdict, failed, read

Program = Generator[Request | Verdict, bool, None]

POLL_SECONDS = 0.0005
"""How long to sleep between two looks at the other drivers of a thread."""


class _Busy(threading.local):
    """The drivers of this thread that have buckets in flight."""

    def __init__(self) -> None:
        self.drivers: weakref.WeakSet[StepDriver] = weakref.WeakSet()


_busy = _Busy()


@dataclass(slots=True)
class _Task:
    program: Program
    in_order: bool
    """Whether its later rounds wait for `finish`, and all its rounds use channel 0."""
    read: bool = False
    """Whether the host reads what the round in progress brings."""
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

    def joint(self, finite: bool, failed: bool) -> bool:
        """Whether a step is finite on all ranks, where its programs exchange in groups; raises if it failed elsewhere."""
        ...


class StepDriver:
    """The buckets of one step in progress."""

    def __init__(self, router: Router, step: int) -> None:
        self._router = router
        self._step = step
        self._transport = router.transport
        self._stats = router.stats
        self._tasks: list[_Task] = []
        self._over = False
        self._transport.begin_step()

    def launch(self, bucket: Bucket) -> None:
        """Compress a bucket and send its first round; advance earlier buckets that are ready."""
        self._stats.dense_bytes += bucket.nbytes
        in_order = self._transport.one_order or bucket.device.type != "cpu"
        _busy.drivers.add(self)
        try:
            for program in self._router.programs(bucket, self._step):
                task = _Task(program, in_order)
                self._tasks.append(task)
                self._advance(task)
            self.poll()
        except LayoutError:  # raised on all ranks, at the same bucket
            self.abandon()
            raise
        except BaseException as error:
            # Not waiting for what is in flight: after a failed rank, the error would come a second timeout later.
            self.discard(error)
            raise

    def finish(self, joint: Callable[[bool, bool], bool] | None = None) -> bool:
        """Wait for everything, then decode. Returns False if a gradient was not finite.

        `joint`: called with whether this step is finite and whether it failed; returns whether it is finite among ranks
        beyond those of the transport too, or raises.
        """
        try:
            self._wait()
            with self._stats.timed("wait"):
                self._transport.complete()
            verdicts = [task.verdict for task in self._tasks if task.verdict is not None]
            codes = read([verdict.codes for verdict in verdicts])
        except BaseException as error:
            self.discard(error)
            raise
        outcomes = [verdict.decide(of_bucket) for verdict, of_bucket in zip(verdicts, codes)]
        errors = [error for _, found in outcomes for error in found]
        finite = all(good for good, _ in outcomes)
        for beyond in (self._router.joint if self._tasks else None, joint):
            if beyond is not None:
                try:
                    finite = beyond(finite, bool(errors))
                except GraceError as error:
                    errors.append(error)
        if errors:
            self.discard()
            raise errors[0]
        try:
            with self._stats.timed("decode"):
                for task in self._tasks:
                    self._conclude(task, finite)
            self._pass_on()
        except BaseException as error:
            self.discard(error)
            raise
        self._tasks.clear()
        self._over = True
        self._stats.steps += 1
        self._stats.skipped += not finite
        return finite

    def abandon(self, why: str | None = None) -> None:
        """Abort a step that all ranks abort at the same bucket, for example because backward raised on each.

        Which later rounds have begun depends on timing, so all are completed first; otherwise the next step's
        collectives would be matched with those of this one on other ranks. Rounds in one order have not begun. `why` is for ranks that do not abort it.
        """
        if why is not None and self._tasks:
            self._transport.leave_step(why)
        self._tasks = [task for task in self._tasks if task.handle is not None or task.verdict is not None]
        try:
            with contextlib.suppress(GraceError):  # if ranks are gone, the next step reports it
                in_order = [task for task in self._tasks if task.in_order and task.handle is not None]
                for task in in_order:
                    task.program.close()  # before the device waits: this may read values from it
                for task in in_order:
                    assert task.handle is not None
                    task.handle.wait_on_device()
                    task.verdict = Verdict()
                self._wait()
        finally:
            self.discard()

    def discard(self, error: BaseException | None = None) -> None:
        """Abort the step: memories are restored to their state before it.

        `error`: why this rank leaves the step, if other ranks may not know.
        """
        if error is not None and not self._over and not isinstance(error, PeerError):
            self._transport.leave_step(f"{type(error).__name__}: {error}")
        self._over = True
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
                        self._let_others_go_on(task.handle)
                        self._wait_for(task)
                    self._advance(task)

    def _wait_for(self, task: _Task) -> None:
        assert task.handle is not None
        task.handle.wait_on_device()
        if task.read:
            self._transport.complete()

    def _let_others_go_on(self, handle: Handle) -> None:
        """Until a collective is complete, advance the other drivers of this thread that have rounds left."""
        # Handles that were given one transport share its channels, where their order must not depend on timing.
        busy = [driver for driver in _busy.drivers if driver._transport is not self._transport]
        others = [driver for driver in busy if driver.in_progress]
        while others and not handle.done():
            for driver in others:
                with contextlib.suppress(PeerError):  # its own `finish` will meet and report it
                    driver.poll()
            others = [driver for driver in others if driver.in_progress]
            time.sleep(POLL_SECONDS)

    @property
    def in_progress(self) -> bool:
        """Whether `poll` may still have something to do."""
        return any(task.verdict is None and not task.in_order for task in self._tasks)

    def poll(self) -> None:
        """Advance the buckets whose current round is complete; does not wait."""
        for place, task in enumerate(self._tasks):
            while (
                not task.in_order and task.verdict is None and task.handle is not None and task.handle.done()
            ):
                before = self._tasks[place - 1] if place else None
                if before is not None and before.verdict is None and before.round <= task.round:
                    return
                task.handle.wait()
                self._advance(task)

    def _advance(self, task: _Task) -> None:
        with self._stats.timed("compress"):
            request = self._next(task)
        if isinstance(request, Verdict):
            task.verdict = request
            task.handle = None
        else:
            self._issue(task, request)

    def _issue(self, task: _Task, request: Request) -> None:
        task.round += 1
        leaving = request.leaving_bytes(self._transport.size)
        self._stats.collectives += not isinstance(request, Idle)
        self._stats.payload_bytes += request.payload_bytes
        self._stats.leaving_bytes += leaving
        if isinstance(request, Grouped) and request.between:
            self._stats.between_bytes += leaving
        task.read = request.read
        task.handle = request.issue(self._transport, 0 if task.in_order else task.round)

    @staticmethod
    def _next(task: _Task) -> Request | Verdict:
        """The next request. After the first round an error becomes a verdict, so that the other buckets complete: their
        collectives would otherwise be matched with those of the next step."""
        try:
            return next(task.program)
        except PeerError:
            raise
        except Exception as error:
            if task.round < 0:
                raise
            return failed([error])

    def _conclude(self, task: _Task, finite: bool) -> None:
        """Reply to a verdict. What the program then wants to pass on is issued, but not waited for."""
        try:
            request = task.program.send(finite)
        except StopIteration:
            return
        assert not isinstance(request, Verdict), "a program has one verdict"
        self._issue(task, request)

    def _pass_on(self) -> None:
        """Complete the requests that followed verdicts."""
        for task in self._tasks:
            if task.handle is not None:
                with self._stats.timed("wait"):
                    self._wait_for(task)
                with self._stats.timed("decode"):
                    ended = next(task.program, None) is None
                assert ended, "a program ends with the request that follows its verdict"
