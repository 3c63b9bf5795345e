"""Local worker processes for commands: started, monitored and always terminated."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from .errors import ConfigError, GraceError, LayoutError, PeerError
from .formatting import size

LEAST_MEMORY = 100 * 2**20
"""Bytes that a process with PyTorch takes at least."""

Emit = Callable[[Any], None]
"""Sends an event from a worker to the process that started it."""


class WorkerError(GraceError, RuntimeError):
    """A local worker failed, died or timed out; the message gives the details."""


def run_workers(
    function: Callable[..., Any],
    world: int,
    *arguments: Any,
    on_event: Callable[[int, Any], None] = lambda rank, event: None,
    silence: float = 120.0,
    place: Callable[[int], str] | None = None,
) -> list[Any]:
    """Run `function(rank, world, emit, *arguments)` in `world` local processes connected by a Gloo group.

    `function` must be importable. `place(rank)`, called first on each worker, may move it elsewhere (into a network
    namespace) and returns the network interface to use; without it that is loopback. Events are passed to
    `on_event` as they arrive. If no worker sends an event for `silence` seconds, all are terminated and the stacks of
    those still running are printed. Returns the results by rank.
    """
    from torch.distributed import TCPStore

    check_memory(world)
    # Workers in another network namespace may not reach this process, but they share its files.
    folder = tempfile.TemporaryDirectory(prefix="grace-workers-")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if place is None else None
    meeting = store.port if store is not None else os.path.join(folder.name, "store")
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    ends: dict[Connection, int] = {}
    try:
        for rank in range(world):
            ours, theirs = context.Pipe(duplex=False)
            process: BaseProcess = context.Process(
                target=_worker,
                args=(theirs, os.getpid(), meeting, rank, world, silence, place, function, arguments),
                daemon=True,
            )
            process.start()
            theirs.close()
            processes.append(process)
            ends[ours] = rank
        return _watch(processes, ends, on_event, silence)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join(10)
        folder.cleanup()


def memory_bytes() -> int:
    """The memory of this machine; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0


def check_memory(workers: int) -> None:
    """Reject a number of workers that this machine cannot hold, before any is started."""
    needed, present = workers * LEAST_MEMORY, memory_bytes()
    if present and needed > present:
        raise ConfigError(
            f"{workers} workers need at least {size(needed)} of memory, and this machine has {size(present)}; "
            f"start at most {present // LEAST_MEMORY}."
        )


def _watch(
    processes: list[BaseProcess],
    ends: dict[Connection, int],
    on_event: Callable[[int, Any], None],
    silence: float,
) -> list[Any]:
    results: dict[int, Any] = {}
    open_ends = dict(ends)
    while open_ends:
        ready = wait(list(open_ends), timeout=silence)
        if not ready:
            raise WorkerError(
                f"no worker reported anything for {silence:g} s: {_stacks(processes)}; all were ended."
            )
        for end in ready:
            assert isinstance(end, Connection)
            rank = open_ends[end]
            try:
                kind, value = end.recv()
            except EOFError:
                processes[rank].join(5)
                raise WorkerError(
                    f"worker {rank} died with exit code {processes[rank].exitcode}; "
                    "a negative one is a signal, and -9 usually means that memory ran out."
                ) from None
            if kind == "event":
                on_event(rank, value)
            elif kind in ("failed", "refused"):
                raise _reason([(kind, rank, value), *_others(open_ends, end)])
            else:
                results[rank] = value
                del open_ends[end]
    return [results[rank] for rank in range(len(processes))]


def _others(ends: dict[Connection, int], first: Connection) -> list[tuple[str, int, Any]]:
    """Collect the errors of workers that fail at about the same time: one may only report that a peer has left."""
    found = []
    deadline = time.monotonic() + 2
    waiting = {end: rank for end, rank in ends.items() if end is not first}
    while waiting and (ready := wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))):
        for end in ready:
            assert isinstance(end, Connection)
            try:
                kind, value = end.recv()
            except EOFError:
                del waiting[end]
                continue
            if kind in ("failed", "refused"):
                found.append((kind, waiting.pop(end), value))
    return found


def _reason(said: list[tuple[str, int, Any]]) -> GraceError:
    """The error to show: root causes first, then errors that only report a lost peer."""
    for kind, _, value in said:
        if kind == "refused" and not isinstance(value, (PeerError, LayoutError)):
            return value
    kind, rank, value = next((one for one in said if one[0] == "failed"), said[0])
    if kind == "refused":
        return value
    return WorkerError(f"worker {rank} failed:\n{value}")


def _stacks(processes: list[BaseProcess]) -> str:
    if not hasattr(signal, "SIGUSR1"):
        return "this system cannot show their stacks"
    for process in processes:
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGUSR1)
    time.sleep(1)
    return "their stacks are above"


def _end_with(parent: int) -> None:
    """End this process when its parent has gone, which cannot terminate it if it was killed itself."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _worker(
    end: Connection,
    parent: int,
    meeting: int | str,
    rank: int,
    world: int,
    silence: float,
    place: Callable[[int], str] | None,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and terminates the workers
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if place is None:
        choose_loopback()
    else:
        os.environ["GLOO_SOCKET_IFNAME"] = place(rank)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    try:
        timeout = datetime.timedelta(seconds=silence)
        from torch.distributed import FileStore, Store, TCPStore

        store: Store
        if isinstance(meeting, int):
            store = TCPStore("127.0.0.1", meeting, is_master=False, timeout=timeout)
        else:
            store = FileStore(meeting, world)
            store.set_timeout(timeout)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)
        result = function(rank, world, lambda event: end.send(("event", event)), *arguments)
        dist.barrier()
        dist.destroy_process_group()
    except GraceError as error:
        _send_last(end, ("refused", _plain(error)))
    except Exception:
        _send_last(end, ("failed", traceback.format_exc()))
    end.send(("done", result))


def _send_last(end: Connection, message: tuple[str, Any]) -> NoReturn:
    with contextlib.suppress(BrokenPipeError):  # the parent was killed
        end.send(message)
    os._exit(1)


def _plain(error: GraceError) -> GraceError:
    """The error without its traceback, which is of no use to users."""
    try:
        return type(error)(str(error))
    except TypeError:  # a user-defined class whose constructor takes more than a message
        return WorkerError(str(error))


def choose_loopback() -> None:
    """All workers are local: Gloo must not fail because the host name does not resolve."""
    names = [name for _, name in socket.if_nameindex()]
    for loopback in ("lo", "lo0"):
        if loopback in names:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
