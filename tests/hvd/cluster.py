"""Run functions under real Horovod: several processes, its Gloo controller on loopback, and never a stuck run.

Starting a process with TensorFlow costs seconds, so that one launch calls many functions; each has its own outcome.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
WORKER = Path(__file__).with_name("worker.py")
TAIL = 6000


@dataclass
class Outcome:
    """How a function ended on one rank."""

    value: Any = None
    error: str | None = None


class Launch:
    """Outcomes of one launch, by function and rank."""

    def __init__(self, size: int, outcomes: dict[str, list[Outcome]], logs: list[str]) -> None:
        self.size = size
        self._outcomes = outcomes
        self._logs = logs

    def __getitem__(self, function: str) -> list[Any]:
        """What every rank returned; raises what is known where one failed."""
        outcomes = self._outcomes[function]
        failed = [f"--- rank {r}: {o.error}" for r, o in enumerate(outcomes) if o.error]
        if failed:
            logs = [f"--- output of rank {r}:\n{log[-TAIL:]}" for r, log in enumerate(self._logs)]
            raise AssertionError("\n".join([f"{function} failed", *failed, *logs]))
        return [o.value for o in outcomes]


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What horovodrun tells a process of a run on one machine."""
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(size),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": "localhost",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


def settings() -> dict[str, str]:
    """What every process of a test gets beside that."""
    return {
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "2",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "GRACE_TIMEOUT": "90",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]),
    }


def rendezvous(size: int) -> tuple[Any, int]:
    """A server at which so many ranks of this machine find each other, and its port. It serves one initialisation."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(parse_hosts(f"localhost:{size}"), size))
    return server, port


def launch(
    size: int, module: str, functions: list[str], timeout: float = 300.0, env: dict[str, str] | None = None
) -> Launch:
    """Call `functions` of `tests/hvd/<module>.py` in turn on `size` ranks."""
    server, port = rendezvous(size)
    with tempfile.TemporaryDirectory(prefix="grace-hvd-") as folder:
        processes, logs = [], []
        for rank in range(size):
            log = open(Path(folder) / f"log{rank}", "w+")  # noqa: SIM115 - closed below
            logs.append(log)
            command = [
                sys.executable,
                str(WORKER),
                f"hvd.{module}",
                json.dumps(functions),
                f"{folder}/{rank}",
            ]
            processes.append(
                subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **settings(), **environment(rank, size, port), **(env or {})},
                )
            )
        _wait(processes, time.monotonic() + timeout)
        server.stop()
        texts = []
        for log in logs:
            log.seek(0)
            texts.append(log.read())
            log.close()
        outcomes = {f: [_outcome(Path(folder), r, f, processes[r]) for r in range(size)] for f in functions}
        return Launch(size, outcomes, texts)


def _wait(processes: list[subprocess.Popen[bytes]], deadline: float) -> None:
    # When one rank is gone, the others have this long to notice.
    grace: float | None = None
    while any(p.poll() is None for p in processes):
        if grace is None and any(p.poll() not in (None, 0) for p in processes):
            grace = time.monotonic() + 120
        if time.monotonic() > min(deadline, grace or deadline):
            left = [p for p in processes if p.poll() is None]
            for process in left:
                process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            for process in left:
                process.kill()
        time.sleep(0.05)


def _outcome(folder: Path, rank: int, function: str, process: subprocess.Popen[bytes]) -> Outcome:
    path = folder / f"{rank}.{function}"
    if not path.exists():
        return Outcome(error=f"no result; the process ended with {process.returncode}")
    ok, value = pickle.loads(path.read_bytes())
    return Outcome(value) if ok else Outcome(error=value)
