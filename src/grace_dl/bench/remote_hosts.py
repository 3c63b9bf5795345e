"""Workers on a list of hosts, started through ssh and connected by torchrun's rendezvous.

On each host an agent starts `torchrun`. It exits when its standard input closes, so no process is left behind when the
command ends, even if it is killed. Rank 0 writes events as lines to its output, which ssh returns.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import queue
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import IO, Any

from ..errors import ConfigError
from ..workers import WorkerError, choose_loopback

MARK = "@grace "
"""The prefix of a line that is an event."""
_MODULE = "grace_dl.bench.remote_hosts"
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@%-]*")
"""ssh would take a name that begins with a dash as an option."""
_PASSED = ("PYTHONPATH", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "GRACE_ISA")


def parse(hosts: str, workers: int) -> list[str]:
    """Parse hosts separated by commas or spaces, and check them against the number of workers.

    >>> parse("node1,node2", 4)
    ['node1', 'node2']
    """
    names = hosts.replace(",", " ").split()
    for name in names:
        if not _HOST.fullmatch(name):
            raise ConfigError(
                f"--hosts: {name!r} is no name of a host; write for example node1 or user@10.0.0.2."
            )
    if len(set(names)) != len(names):
        raise ConfigError(f"--hosts {hosts!r} names a host twice; write each once.")
    if names and workers % len(names):
        raise ConfigError(
            f"{workers} workers cannot be spread evenly over {len(names)} hosts; give a multiple of {len(names)}."
        )
    near = [name for name in names if name == "localhost"]
    if near and not all(local(name) for name in names):
        raise ConfigError(
            f"--hosts {hosts!r}: other hosts cannot reach {near[0]!r}; write the name they know it by."
        )
    return names


def local(host: str) -> bool:
    """Whether a name refers to this machine, so that ssh is not needed."""
    own = socket.gethostname()
    return host in ("localhost", own, own.split(".")[0], "::1") or host.startswith("127.")


def run_on_hosts(
    hosts: Sequence[str],
    function: Callable[..., Any],
    world: int,
    *arguments: Any,
    on_event: Callable[[int, Any], None],
    silence: float,
) -> None:
    """Like `run_workers`, with `world` workers spread over `hosts`. Arguments and events are sent as JSON; events of
    rank 0 are forwarded."""
    job = {
        "function": [function.__module__, function.__qualname__],
        "arguments": arguments,
        "hosts": len(hosts),
        "each": world // len(hosts),
        "address": hosts[0],
        "port": int(os.environ.get("GRACE_PORT") or random.SystemRandom().randrange(20000, 32000)),
        "silence": silence,
    }
    lines: queue.Queue[tuple[int, str | None]] = queue.Queue()
    agents: list[subprocess.Popen[str]] = []
    try:
        for place, host in enumerate(hosts):
            agent = subprocess.Popen(
                _command(host, {**job, "place": place}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            agents.append(agent)
            threading.Thread(target=_read, args=(agent.stdout, place, lines), daemon=True).start()
        _watch(hosts, agents, lines, on_event, silence)
    finally:
        for agent in agents:
            if agent.stdin is not None:
                agent.stdin.close()
        for agent in agents:
            try:
                agent.wait(15)
            except subprocess.TimeoutExpired:
                agent.kill()


def _watch(
    hosts: Sequence[str],
    agents: list[subprocess.Popen[str]],
    lines: queue.Queue[tuple[int, str | None]],
    on_event: Callable[[int, Any], None],
    silence: float,
) -> None:
    running = len(agents)
    while running:
        try:
            place, line = lines.get(timeout=silence)
        except queue.Empty:
            raise WorkerError(f"no host reported anything for {silence:g} s; all were ended.") from None
        if line is None:
            running -= 1
            code = agents[place].wait()
            if code:
                what = "ssh could not connect or start it" if code == 255 else "its output above says why"
                raise WorkerError(
                    f"{hosts[place]} ended with exit code {code}: {what}. Every host needs this package in the same "
                    "place (or PY in envs.conf), and ssh without a password."
                )
        elif line.startswith(MARK):
            on_event(0, tuple(json.loads(line[len(MARK) :])))
        else:
            print(f"{hosts[place]}: {line}", end="", file=sys.stderr)


def _read(stream: IO[str] | None, place: int, lines: queue.Queue[tuple[int, str | None]]) -> None:
    assert stream is not None
    for line in stream:
        lines.put((place, line))
    lines.put((place, None))


def _command(host: str, job: dict[str, Any]) -> list[str]:
    text = base64.b64encode(json.dumps(job).encode()).decode()
    agent = [sys.executable, "-m", _MODULE, text]
    if local(host):
        return agent
    passed = [f"{name}={os.environ[name]}" for name in _PASSED if name in os.environ]
    # The first `cd` resolves relative entries of PYTHONPATH as here; a host may lack the folder.
    line = f"cd {shlex.quote(os.getcwd())} 2>/dev/null; exec {shlex.join(['env', *passed, *agent])}"
    return ["ssh", "-o", "BatchMode=yes", "--", host, line]


# On the hosts ---------------------------------------------------------------------------------------------


def _agent(text: str) -> int:
    """Start this host's workers; terminate them when standard input closes."""
    job = json.loads(base64.b64decode(text))
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(job["hosts"])]
    command += ["--nproc-per-node", str(job["each"]), "--node-rank", str(job["place"])]
    command += ["--master-addr", job["address"], "--master-port", str(job["port"]), "-m", _MODULE, text]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "GRACE_BENCH_RANK": "1"}
    workers = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)

    def leave_with_caller() -> None:
        # Not through sys.stdin, whose lock would be held when the interpreter exits.
        while os.read(0, 4096):
            pass
        os.killpg(workers.pid, signal.SIGTERM)

    threading.Thread(target=leave_with_caller, daemon=True).start()
    return workers.wait()


def _rank(text: str) -> int:
    """One worker, started by torchrun."""
    import datetime

    import torch.distributed as dist

    job = json.loads(base64.b64decode(text))
    if job["address"] == "localhost" or job["address"].startswith("127."):
        choose_loopback()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=job["silence"]))
    module, name = job["function"]
    rank = dist.get_rank()

    def emit(event: Any) -> None:
        if rank == 0:
            print(MARK + json.dumps(event), flush=True)

    getattr(importlib.import_module(module), name)(rank, dist.get_world_size(), emit, *job["arguments"])
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(_rank(sys.argv[1]) if "GRACE_BENCH_RANK" in os.environ else _agent(sys.argv[1]))
