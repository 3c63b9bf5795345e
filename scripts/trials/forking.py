"""Ranks as forks of one process that has imported everything: starting one costs a tenth of a second instead of several.

`Forks` is the side of the trial. `python forking.py` is the process that forks; it reads requests from its standard input and
reports how each fork ended. A fork runs the program from its first line to the end of the interpreter, as a new process would.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

IMPORTS = ("torch._dynamo", "torch.nn.parallel", "grace_dl.integrations.attach", "grace_dl.train.main")
"""DDP and optimizers import `torch._dynamo` when they are first used."""
POLL_SECONDS = 0.02
FORK_ATTEMPTS = 100


class Fork:
    """One process; the part of `subprocess.Popen` that trials use."""

    def __init__(self, owner: Forks, pid: int) -> None:
        self._owner = owner
        self.pid = pid

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._owner.codes.get(self.pid)

    def wait(self) -> int:
        return self._owner.wait_for(self._owner.codes, self.pid)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forks:
    """The process that forks, started when it is first needed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        self.news = threading.Condition()
        self.codes: dict[int, int] = {}
        self._started: dict[int, int] = {}
        self._requests = 0
        self._ended = False
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, arguments: Sequence[str], env: Mapping[str, str], output: str) -> Fork:
        """Run a program with `arguments` (its path first); what it prints goes to the file `output`."""
        with self.news:
            self._requests += 1
            number = self._requests
            assert self._process.stdin is not None
            request = {"number": number, "arguments": list(arguments), "env": dict(env), "output": output}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return Fork(self, self.wait_for(self._started, number))

    def wait_for(self, answers: Mapping[int, int], key: int) -> int:
        """Wait for an answer of the process that forks. Raises if it has ended; it prints why."""
        with self.news:
            self.news.wait_for(lambda: key in answers or self._ended)
            if key not in answers:
                raise RuntimeError("The process that forks ranks has ended; see its error above.")
            return answers[key]

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            with self.news:
                if "number" in event:
                    self._started[event["number"]] = event["pid"]
                    self.codes.pop(event["pid"], None)
                else:
                    self.codes[event["pid"]] = event["code"]
                self.news.notify_all()
        with self.news:
            self._ended = True
            self.news.notify_all()


def fork() -> int:
    """`os.fork`, which fails for a moment now and then on a machine that is starting many processes."""
    for _ in range(FORK_ATTEMPTS):
        try:
            return os.fork()
        except BlockingIOError:
            time.sleep(POLL_SECONDS)
    return os.fork()


def serve() -> dict[str, Any] | None:
    """Fork on request until the standard input is closed. Returns the request in a fork, None at the end."""
    pending, children = b"", set()
    while True:
        if select.select([0], [], [], POLL_SECONDS)[0]:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                request: dict[str, Any] = json.loads(line)
                pid = fork()
                if not pid:
                    return request
                children.add(pid)
                print(json.dumps({"number": request["number"], "pid": pid}), flush=True)
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                children.remove(pid)
                print(json.dumps({"pid": pid, "code": os.waitstatus_to_exitcode(status)}), flush=True)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    return None


if __name__ == "__main__":
    for name in IMPORTS:
        importlib.import_module(name)
    assert threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1, (
        "threads do not survive a fork"
    )
    request = serve()
    if request is not None:
        with open(request["output"], "ab") as file, open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = request["arguments"]
        runpy.run_path(sys.argv[0], run_name="__main__")
