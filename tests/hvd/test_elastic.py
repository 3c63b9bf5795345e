"""A real elastic launch: a worker joins, another is killed, and training goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvd.cluster import settings

JOB = Path(__file__).with_name("elastic_job.py")
LIMIT = 120.0


def test_a_worker_joins_and_one_is_killed(tmp_path: Path) -> None:
    hosts, log, output = tmp_path / "hosts", tmp_path / "log", tmp_path / "output"
    discover = tmp_path / "discover.sh"
    discover.write_text(f"#!/bin/sh\ncat {hosts}\n")
    discover.chmod(0o755)
    log.touch()

    def offer(*lines: str) -> None:
        part = tmp_path / "part"
        part.write_text("".join(f"{line}\n" for line in lines))
        part.rename(hosts)

    def records(event: str, size: int | None = None) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in log.read_text().splitlines()]
        return [r for r in found if r["event"] == event and size in (None, r["size"])]

    def wait_until(condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > deadline or job.poll() is not None:
                pytest.fail(f"{log.read_text()}\n{output.read_text()[-6000:]}")
            time.sleep(0.05)

    # Two names of this machine: Horovod does not use a host again on which a worker has failed.
    offer("localhost:1", "127.0.0.1:1")
    command = [
        *(sys.executable, "-m", "horovod.runner.launch", "--gloo", "--network-interface", "lo"),
        *("-np", "2", "--min-np", "1", "--max-np", "3", "--host-discovery-script", str(discover)),
        *(sys.executable, str(JOB)),
    ]
    with open(output, "wb") as file:
        job = subprocess.Popen(
            command,
            env={**os.environ, **settings(), "GRACE_TEST_LOG": str(log)},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(lambda: len(records("saved", 2)) >= 6)
        offer("localhost:2", "127.0.0.1:1")
        wait_until(lambda: len(records("saved", 3)) >= 6)
        (victim,) = {r["process"] for r in records("start", 3) if r["host"] == "127.0.0.1"}
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(records("end")) == 2)
        assert job.wait(LIMIT) == 0, output.read_text()[-6000:]
    finally:
        if job.poll() is None:
            job.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(10)
            job.kill()
        for process in {r["process"] for r in records("start")} - {r["process"] for r in records("end")}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    sizes = [r["size"] for r in records("start")]
    assert sizes == [2, 2, 3, 3, 3, 2, 2]
    # Ranks that stay keep what they have not sent; a new one starts with nothing.
    (batch,) = {r["batch"] for r in records("start", 3)}
    saved = {r["process"]: r["owed"] for r in records("saved", 2) if r["batch"] == batch}
    assert len(saved) == 2 and all(saved.values())
    for start in records("start", 3):
        assert start["owed"] == saved.get(start["process"], 0.0)
    # The last two resume after the failed step, with what they had then.
    assert all(start["owed"] for start in records("start")[-2:])
    first, second = records("end")
    assert first["weights"] == second["weights"]
    losses = [r["loss"] for r in records("saved")]
    assert losses[-1] < losses[0]
