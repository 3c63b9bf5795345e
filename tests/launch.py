"""Run a function on several ranks: real processes, a real Gloo group on loopback, and never a stuck run.

    def work(rank, world, scale):                      # module level, so that the ranks can import it
        x = torch.full((2,), scale * rank)
        dist.all_reduce(x)
        return x

    def test_sum(launch):
        for x in launch(work, 3, 1.0):
            assert x.tolist() == [3.0, 3.0]

Processes are forked from a server that has imported torch already, and are kept between calls, a set for each number
of ranks, so that the ranks of a call have all lived through the same calls; each call gets a process group of its own.
After any failure, and after a call that starts the process group itself, the set is replaced. A call that exceeds its time is killed, and the
error shows every rank's Python stack and what it printed.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import gc
import importlib
import importlib.util
import itertools
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from launcher_environment import changed

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
"""What ranks are started with: one thread each, since several of them share the machine's cores."""

TAIL = 6000
"""Characters of a rank's output that an error shows."""


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass
class Outcome:
    """How one rank's call ended: with a value, with an exception, or with the death of its process."""

    rank: int
    value: Any = None
    error: str | None = None
    """The exception as `Type: message`; also set when the process died or ran out of time."""
    traceback: str = ""
    output: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.error is None


class RankFailure(AssertionError):
    """At least one rank failed; the message holds what is known of each."""

    def __init__(self, function: str, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes
        parts = [f"{function} failed on rank(s) {[o.rank for o in outcomes if not o.ok]} of {len(outcomes)}"]
        for o in outcomes:
            parts.append(f"--- rank {o.rank}: {o.error or f'ended well after {o.seconds:.1f} s'}")
            parts += [text.rstrip() for text in (o.traceback, o.output) if text.strip() and not o.ok]
        super().__init__("\n".join(parts))


class Launcher:
    """A pool of ranks. `launch(fn, world, *args)` returns the list of what `fn(rank, world, *args)` gave."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="grace-ranks-"))
        self.pools: dict[int, list[_Worker]] = {}
        self.calls = itertools.count()
        self._store: Any = None

    def __call__(
        self,
        fn: Callable[..., Any],
        world: int,
        *args: Any,
        timeout: float = 120.0,
        group_timeout: float | None = None,
        env: dict[str, str] | None = None,
        init: bool = True,
    ) -> list[Any]:
        """Call `fn(rank, world, *args)` on every rank and return the results by rank.

        `group_timeout` is the process group's own (default: the call's); `env` is set on the ranks for this call;
        `init=False` leaves starting the process group to `fn`.
        """
        outcomes = self.outcomes(
            fn, world, *args, timeout=timeout, group_timeout=group_timeout, env=env, init=init
        )
        if not all(o.ok for o in outcomes):
            raise RankFailure(getattr(fn, "__qualname__", repr(fn)), outcomes)
        return [o.value for o in outcomes]

    def outcomes(
        self,
        fn: Callable[..., Any],
        world: int,
        *args: Any,
        timeout: float = 120.0,
        group_timeout: float | None = None,
        env: dict[str, str] | None = None,
        init: bool = True,
    ) -> list[Outcome]:
        """As calling the launcher, but failures are returned rather than raised.

        A rank that raises leaves at once, as a crashed training process would, so its peers see it go.
        """
        job = _Job(
            function=_reference(fn),
            args=pickle.dumps(args),
            world=world,
            port=self._port() if init else 0,
            prefix=f"call{next(self.calls)}",
            group_timeout=group_timeout or timeout,
            env=env or {},
            sys_path=list(sys.path),
        )
        workers = self._take(world)
        started = time.monotonic()
        for rank, worker in enumerate(workers):
            worker.begin(job, rank)
        outcomes = self._collect(workers, started, timeout)
        # torch counts the process groups of a process, and two ranks meet only if they have counted equally many. After a call that
        # starts the group itself they may not have: one rank may have failed in `init_process_group`.
        if not init or not all(o.ok for o in outcomes):
            self._drop(world)
        return outcomes

    def close(self) -> None:
        """End all ranks."""
        for world in list(self.pools):
            self._drop(world)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _collect(self, workers: list[_Worker], started: float, timeout: float) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        by_connection = {worker.connection: rank for rank, worker in enumerate(workers)}
        while len(outcomes) < len(workers):
            left = started + timeout - time.monotonic()
            pending = [c for c, rank in by_connection.items() if rank not in outcomes]
            ready = wait(pending, timeout=max(0.0, left))
            for connection in ready:
                rank = by_connection[connection]  # type: ignore[index]
                outcomes[rank] = workers[rank].receive(rank)
                outcomes[rank].seconds = time.monotonic() - started
            if not ready and left <= 0:
                for rank in (r for r in range(len(workers)) if r not in outcomes):
                    workers[rank].dump_stacks()
                for rank in (r for r in range(len(workers)) if r not in outcomes):
                    error = f"no answer within {timeout:g} s; its stacks when it was killed:"
                    outcomes[rank] = Outcome(rank, error=error, output=workers[rank].output())
        for rank, outcome in outcomes.items():
            if not outcome.ok:
                outcome.output = outcome.output or workers[rank].output()
        return [outcomes[rank] for rank in range(len(workers))]

    def _take(self, world: int) -> list[_Worker]:
        if not all(worker.process.is_alive() for worker in self.pools.get(world, [])):
            self._drop(world)
        if world not in self.pools:
            self.pools[world] = [_Worker(self.folder) for _ in range(world)]
        return self.pools[world]

    def _drop(self, world: int) -> None:
        for worker in self.pools.pop(world, []):
            worker.end()

    def _port(self) -> int:
        # The store lives in this process, so that it outlives ranks that die in a test.
        if self._store is None:
            from torch.distributed import TCPStore

            self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return int(self._store.port)


@dataclass
class _Job:
    function: tuple[str, str, str]
    args: bytes
    world: int
    port: int
    prefix: str
    group_timeout: float
    env: dict[str, str]
    sys_path: list[str]


class _Worker:
    """One process of the pool, seen from the test."""

    _names = itertools.count()

    def __init__(self, folder: Path) -> None:
        self.log = folder / f"rank-process-{next(self._names)}.log"
        self.log.touch()
        self.mark = 0
        context = multiprocessing.get_context("forkserver")
        self.connection, theirs = context.Pipe()
        with changed(ENVIRONMENT):
            context.set_forkserver_preload(["torch", "torch.distributed", "torch.nn.parallel", "pytest"])
            self.process = context.Process(target=_serve, args=(theirs, str(self.log)), daemon=True)
            self.process.start()
        theirs.close()

    def begin(self, job: _Job, rank: int) -> None:
        self.mark = self.log.stat().st_size
        with contextlib.suppress(OSError):  # a process that is gone shows when its answer is awaited
            self.connection.send_bytes(pickle.dumps((job, rank)))

    def receive(self, rank: int) -> Outcome:
        try:
            answer = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.process.join(5)
            return Outcome(rank, error=f"the process died, exit code {self.process.exitcode}")
        if isinstance(answer, Outcome):
            return answer
        return Outcome(rank, value=answer[0])

    def dump_stacks(self) -> None:
        """Ask for the stacks of all threads and give the process a moment to write them."""
        if self.process.pid is None or not self.process.is_alive():
            return
        before = self.log.stat().st_size
        os.kill(self.process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + 2
        while self.log.stat().st_size == before and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.1)

    def output(self) -> str:
        """What the process printed during the last call."""
        with open(self.log, errors="replace") as file:
            file.seek(self.mark)
            return file.read()[-TAIL:]

    def end(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join(10)


# On the ranks --------------------------------------------------------------------------------------------


def _serve(connection: Connection, log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            job, rank = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        try:
            answer = pickle.dumps((_run(job, rank),))
        except BaseException as error:
            connection.send_bytes(
                pickle.dumps(
                    Outcome(rank, error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
                )
            )
            sys.stderr.flush()
            os._exit(1)  # leave as a crash would: sockets close, and peers notice
        connection.send_bytes(answer)


def _run(job: _Job, rank: int) -> Any:
    import torch
    import torch.distributed as dist

    sys.path[:] = job.sys_path
    function = _resolve(job.function)
    args = pickle.loads(job.args)
    torch.manual_seed(7919 * (rank + 1))  # ranks are seeded differently on purpose
    timeout = datetime.timedelta(seconds=job.group_timeout)
    with changed({**job.env, "RANK": str(rank), "WORLD_SIZE": str(job.world)}):
        if job.port:
            server = dist.TCPStore("127.0.0.1", job.port, is_master=False, timeout=timeout)
            store = dist.PrefixStore(job.prefix, server)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=job.world, timeout=timeout)
        value = function(rank, job.world, *args)
        if job.port and dist.is_initialized():
            dist.barrier()  # nobody tears its sockets down while a peer still uses them
            dist.destroy_process_group()
    gc.collect()
    return value


def _reference(fn: Callable[..., Any]) -> tuple[str, str, str]:
    module = sys.modules[fn.__module__]
    if "<" in fn.__qualname__:
        raise TypeError(
            f"{fn.__qualname__} is not at module level, so the ranks cannot import it; move it there"
        )
    return fn.__module__, getattr(module, "__file__", None) or "", fn.__qualname__


def _resolve(reference: tuple[str, str, str]) -> Callable[..., Any]:
    name, file, qualname = reference
    if name not in sys.modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            # pytest gives test files names that no import path leads to; load those from their file.
            spec = importlib.util.spec_from_file_location(name, file)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
    target: Any = sys.modules[name]
    for part in qualname.split("."):
        target = getattr(target, part)
    return target
