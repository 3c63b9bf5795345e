"""Shared by all trials: jobs of real processes that always end, the command line, and the figures at the end."""

from __future__ import annotations

import argparse
import datetime
import functools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from forking import Fork, Forks

_TAIL = 3000


@dataclass
class Ended:
    """How one rank ended."""

    code: int | None
    """Exit code, negative for a signal; None if it was still running when time was up."""
    output: str
    seconds: float
    """Seconds from the start of the job to the end of this rank."""


@functools.cache
def _forks() -> Forks:
    return Forks()


class Job:
    """`world` processes that run the same Python program with different ranks; all are killed when the block ends.

    They are forks of one process, so that only the first job waits for imports.

    They find each other as under torchrun (`init_process_group("gloo")` is enough). The store is served by this
    process, so it outlives every rank.
    """

    def __init__(self, arguments: Sequence[str], world: int, env: Mapping[str, str] | None = None) -> None:
        self._arguments = arguments
        self._world = world
        self._env = dict(env or {})
        self._processes: list[Fork] = []
        self._files: list[Any] = []

    def __enter__(self) -> Job:
        from torch.distributed import TCPStore

        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._started = time.monotonic()
        for rank in range(self._world):
            file = tempfile.TemporaryFile()
            environment = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "MKL_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._store.port),
                "RANK": str(rank),
                "WORLD_SIZE": str(self._world),
                "LOCAL_RANK": str(rank),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                **self._env,
            }
            self._files.append(file)
            output = f"/proc/{os.getpid()}/fd/{file.fileno()}"
            self._processes.append(_forks().start(self._arguments, environment, output))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        for file in self._files:
            file.close()

    @property
    def seconds(self) -> float:
        """Seconds since the job was started."""
        return time.monotonic() - self._started

    def output(self, rank: int) -> str:
        """What a rank has printed so far."""
        with open(f"/proc/self/fd/{self._files[rank].fileno()}", errors="replace") as file:
            return file.read()

    def send(self, rank: int, signal: int) -> None:
        """Send a signal to one rank."""
        self._processes[rank].send_signal(signal)

    def wait_for(self, rank: int, text: str, limit: float) -> bool:
        """Wait until a rank has printed `text`; False if it ended or time is up before."""
        while True:
            ended = self._processes[rank].poll() is not None
            if text in self.output(rank):
                return True
            if ended or self.seconds > limit:
                return False
            time.sleep(0.02)

    def wait(self, limit: float, ranks: Sequence[int] | None = None) -> list[Ended]:
        """Wait for ranks (all by default) until `limit` seconds after the start of the job."""
        watched = list(range(self._world) if ranks is None else ranks)
        ended: dict[int, float] = {}
        while len(ended) < len(watched) and self.seconds < limit:
            for rank in watched:
                if rank not in ended and self._processes[rank].poll() is not None:
                    ended[rank] = self.seconds
            time.sleep(0.02)
        return [
            Ended(
                self._processes[rank].poll() if rank in ended else None,
                self.output(rank),
                ended.get(rank, self.seconds),
            )
            for rank in watched
        ]


def meet(limit: float = 600) -> None:
    """Called by a rank: wait until all ranks have come here, in any state of load.

    A trial that sets a short timeout calls this when its imports are done, so that the timeout measures failures and not
    how long interpreters take to start.
    """
    import torch.distributed as dist

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, timeout=datetime.timedelta(seconds=limit))
    if store.add("trial/arrived", 1) == int(os.environ["WORLD_SIZE"]):
        store.set("trial/all", "")
    store.wait(["trial/all"])


def describe(ranks: Sequence[Ended]) -> str:
    """Exit codes and the last lines of every rank, for a run that failed."""
    return "\n".join(
        f"--- rank {rank}: exit code {end.code}, after {end.seconds:.1f} s\n{end.output[-_TAIL:].rstrip()}"
        for rank, end in enumerate(ranks)
    )


def run(
    description: str,
    trial: Callable[..., tuple[str, str | None]],
    runs: int,
    options: Mapping[str, int] | None = None,
) -> None:
    """The command line of a trial. Ends the program with exit code 1 if a run failed.

    `trial(number, random)` returns the kind of the run, under which it is counted, and what went wrong (None if
    nothing). `runs` is the number of runs by default. `options`: further options with a number, and their defaults;
    `trial` gets them by name.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--runs", type=int, default=runs, help="number of runs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time (default: 1)")
    for name, default in (options or {}).items():
        parser.add_argument(f"--{name}", type=int, default=default, help="default: %(default)s")
    given = parser.parse_args()
    for name in ("runs", "jobs", *(options or {})):
        if getattr(given, name) < 1:
            parser.error(f"--{name} {getattr(given, name)}: give 1 or more.")
    further = {name: getattr(given, name) for name in options or {}}
    passed: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    started = time.monotonic()

    def one(number: int) -> tuple[str, str | None]:
        return trial(number, random.Random(f"{given.seed}/{number}"), **further)

    _forks()  # one for all threads
    with ThreadPoolExecutor(given.jobs) as pool:
        for number, (kind, problem) in enumerate(pool.map(one, range(given.runs))):
            (failed if problem else passed)[kind] += 1
            spent = time.monotonic() - started
            print(f"{number + 1}/{given.runs} {kind}: {'FAILED' if problem else 'passed'} ({spent:.0f} s)", flush=True)  # fmt: skip
            if problem:
                print(problem, flush=True)
    for kind in sorted(passed | failed):
        print(f"{kind}: {passed[kind]} of {passed[kind] + failed[kind]}")
    print(f"all: {passed.total()} of {given.runs} passed")
    sys.exit(1 if failed else 0)
