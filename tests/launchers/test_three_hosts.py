"""Three hosts, each a network namespace: `grace train` is launched on them as on a cluster."""

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

import pytest

from grace_dl.bench.virtual_hosts import INTERFACE, Hosts, able, privileged
from grace_dl.train.log import read
from training_runs import SMALL

HEAD = "10.77.0.1"
SETTINGS = {
    **SMALL,
    "dataset.size": 144,
    "model.width": 512,
    "train.compression": "topk:0.01",
    "train.num_epochs": 1,
}
REASON = able() or (None if privileged() else "network namespaces need root")


def options() -> list[str]:
    overrides = [word for name, value in SETTINGS.items() for word in (f"--configs.{name}", str(value))]
    return ["--configs", "configs/synthetic.py", "configs/grace.py", "--devices", "cpu", *overrides]


def sent_by(host: int) -> int:
    """The bytes that have left a host through its interface."""
    name = f"grace-{os.getpid()}-{host}"
    shown = subprocess.run(
        ["ip", "-n", name, "-s", "-j", "link", "show", INTERFACE], capture_output=True, check=True
    )
    return int(json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"])


def command(launcher: str, host: int) -> tuple[list[str], dict[str, str]]:
    """What runs on a host, and the variables it gets from its launcher."""
    train = ["-m", "grace_dl.cli", "train", *options()]
    if launcher == "srun":
        variables = {
            "SLURM_JOB_ID": "7",
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": str(host),
            "SLURM_LOCALID": "0",
            "SLURM_NODEID": str(host),
            "SLURM_STEP_NUM_TASKS": "3",
            "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
            "SLURM_STEP_NODELIST": f"{HEAD},10.77.0.[2-3]",
        }
        return [sys.executable, *train], variables
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint={HEAD}:29500", "--rdzv-id=job"]
    # The hosts share one name, so each is told its address; on a cluster, names are enough.
    address = [f"--rdzv-conf=is_host={int(host == 0)}", f"--local-addr=10.77.0.{host + 1}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=3", "--nproc-per-node=1"]
    return [*torchrun, *rendezvous, *address, *train], {}


def start(place: Callable[[int], str], host: int, launcher: str, folder: Path) -> subprocess.Popen[str]:
    words, variables = command(launcher, host)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", **variables}
    environment["PYTHONFAULTHANDLER"] = "1"
    with open(folder / f"host{host}.log", "w") as log:
        return subprocess.Popen(
            words,
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
            text=True,
            preexec_fn=lambda: place(host),
        )


def worked(process: subprocess.Popen[str]) -> int:
    """Clock ticks of processor time that a process and its children have had."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if process.pid in (int(path.parent.name), int(fields[1])):
                found += int(fields[11]) + int(fields[12])
    return found


def check(processes: list[subprocess.Popen[str]], folder: Path) -> None:
    """All end well; otherwise show what they printed, and where they stand.

    Ranks that share a busy machine with many others are slow but work: they hang if none of them gets further.
    """
    try:
        before, since, started = -1, time.monotonic(), time.monotonic()
        while any(process.poll() is None for process in processes) and time.monotonic() < started + 900:
            # torchrun's agents look around all the time, which takes a few ticks a second.
            if abs((now := sum(map(worked, processes))) - before) > 150:  # less when one has ended
                before, since = now, time.monotonic()
            if time.monotonic() > since + 120:
                break
            time.sleep(0.5)
        codes = [process.poll() for process in processes]
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGABRT)  # prints the stacks
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=10)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    logs = "\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("host*.log")))
    assert codes == [0, 0, 0], logs


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_grace_train_on_three_hosts(launcher: str, tmp_path: Path) -> None:
    with Hosts(3, "1gbit") as place:
        processes = [start(place, host, launcher, tmp_path) for host in range(3)]
        check(processes, tmp_path)
        left = [sent_by(host) for host in range(3)]
    (folder,) = (tmp_path / "runs").iterdir()
    config = json.loads((folder / "config.json").read_text())
    assert config["world"]["size"] == 3
    last = [record for record in read(folder / "log.jsonl") if "bytes/sent" in record][-1]
    steps = last["step"]
    assert steps == 144 // (3 * 8)
    # What the statistics say has left rank 0 did leave its interface, and is far less than gradients uncompressed.
    dense = last["bytes/sent"] * last["compression/ratio"]
    assert last["bytes/sent"] <= left[0] < dense, (last, left)
