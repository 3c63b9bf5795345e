"""`torchrun --nnodes=1:3`: machines join and die, 2 → 3 → 1 → 2, and nothing that ranks have not sent is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from grace_dl.train.checkpoint import Checkpoints
from grace_dl.train.log import read
from launch import free_port
from training_runs import ELASTIC, ELASTIC_FILES, SMALL, unsent

SETTINGS = {
    **SMALL,
    **ELASTIC,
    "train.num_epochs": 100_000,
    "train.save_every_steps": 10,
    "train.evaluate_every": 100_000,
    "train.log_every": 10,
    "train.keep": 100_000,
}
LIMIT = 120.0


class Machine:
    """A torchrun agent with one worker."""

    def __init__(self, folder: Path, number: int, port: int) -> None:
        settings = {**SETTINGS, "train.save_path": str(folder / "run")}
        overrides = [word for path, value in settings.items() for word in (f"--configs.{path}", str(value))]
        self._output = folder / f"machine{number}.txt"
        with open(self._output, "wb") as output:
            self._agent = subprocess.Popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1:3", "--nproc-per-node=1"),
                    *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test"),
                    *("--max-restarts=3", "--monitor-interval=0.1"),
                    # A dead machine is noticed after 10 s.
                    "--rdzv-conf=last_call_timeout=2,keep_alive_interval=2,keep_alive_max_attempt=5",
                    *(str(Path(__file__).with_name("elastic_worker.py")), "--devices", "cpu"),
                    *("--configs", *ELASTIC_FILES, *overrides),
                ],
                env={
                    **{k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")},
                    "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "lo",
                    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def kill(self) -> None:
        """Kill worker and agent."""
        listed = subprocess.run(["pgrep", "-P", str(self._agent.pid)], capture_output=True, text=True)
        for process in (*map(int, listed.stdout.split()), self._agent.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._agent.wait()


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    running: list[Machine] = []
    yield running
    for machine in running:
        machine.kill()


def wait_until(condition: Callable[[], bool], what: str, machines: list[Machine]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        said = "\n".join(machine.output[-2000:] for machine in machines)
        assert time.monotonic() < deadline, f"not within {LIMIT} s: {what}\n{said}"
        time.sleep(0.05)


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def complete(folder: Path, ranks: int) -> list[int]:
    """The steps that all of so many ranks have saved."""
    found = [set(Checkpoints(folder / "checkpoints", rank, ranks, keep=1).steps()) for rank in range(ranks)]
    return sorted(set.intersection(*found))


def starts(folder: Path) -> list[list[dict[str, Any]]]:
    """What ranks held at the beginning of each start that became complete, in order."""
    files = sorted((folder / "resumed").glob("*.pt"))
    held = [torch.load(path, weights_only=True) for path in files]
    found: list[list[dict[str, Any]]] = []
    for each in held:
        last = found[-1] if found else []
        ranks = [other["rank"] for other in last]
        same = last and last[0]["size"] == each["size"] and last[0]["state"]["step"] == each["state"]["step"]
        if same and each["rank"] not in ranks:
            last.append(each)
        else:
            found.append([each])
    return [ranks for ranks in found if len(ranks) == ranks[0]["size"]]


def test_machines_come_and_go(machines: list[Machine], tmp_path: Path) -> None:
    port = free_port()
    run = tmp_path / "run"

    def trains_on(ranks: int) -> None:
        """Wait until so many ranks have saved twice more."""
        before = len(complete(run, ranks))
        wait_until(lambda: len(complete(run, ranks)) >= before + 2, f"training on {ranks} ranks", machines)

    machines.append(Machine(tmp_path, 0, port))
    wait_until(lambda: listening(port), "the first machine", machines)
    machines.append(Machine(tmp_path, 1, port))
    trains_on(2)
    machines.append(Machine(tmp_path, 2, port))
    trains_on(3)
    for machine in machines[1:]:  # the first one serves the rendezvous
        machine.kill()
    trains_on(1)
    machines.append(Machine(tmp_path, 3, port))
    trains_on(2)
    for machine in machines:
        machine.kill()

    found = starts(run)
    sizes = [ranks[0]["size"] for ranks in found]
    changes = [size for place, size in enumerate(sizes) if place == 0 or size != sizes[place - 1]]
    # The first machine may begin alone.
    assert changes[changes[0] == 1 :] == [2, 3, 1, 2]
    for old, new in pairwise(found):
        step, size = new[0]["state"]["step"], old[0]["size"]
        assert all(rank["state"]["step"] == step for rank in new)
        files = [Checkpoints(run / "checkpoints", rank, size, keep=1) for rank in range(size)]
        saved = [each.load(each.path(step)) for each in files]
        assert None not in saved
        before = unsent([state for state in saved if state is not None])
        after = unsent([rank["state"] for rank in new])
        assert before.keys() == after.keys() and any(bool(owed.any()) for owed in before.values())
        for name, expected in before.items():
            torch.testing.assert_close(after[name], expected, rtol=1e-5, atol=1e-7)
    records = [r for r in read(run / "log.jsonl") if "loss/train" in r]
    assert [r["step"] for r in records] == sorted({r["step"] for r in records})
    assert records[-1]["loss/train"] < records[1]["loss/train"]
