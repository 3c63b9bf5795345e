"""A trainer on two hosts, each a network namespace: the bytes of Accelerate's ranks are counted on an interface."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grace_dl.bench.virtual_hosts import INTERFACE, Hosts, able, privileged

SCRIPT = Path(__file__).with_name("accelerate_script.py")
REASON = able() or (None if privileged() else "network namespaces need root")
STEPS = 40


def sent_by(host: int) -> int:
    """The bytes that have left a host through its interface."""
    name = f"grace-{os.getpid()}-{host}"
    shown = subprocess.run(
        ["ip", "-n", name, "-s", "-j", "link", "show", INTERFACE], capture_output=True, check=True
    )
    return int(json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"])


def train(method: str, folder: Path) -> tuple[list[int], list[dict[str, object]]]:
    """The bytes that left each of two hosts, and what each rank ended with."""
    folder.mkdir()
    with Hosts(2, "1gbit") as place:
        processes = []
        for rank in range(2):
            environment = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "10.77.0.1",
                "MASTER_PORT": "29500",
                "GLOO_SOCKET_IFNAME": INTERFACE,
                "OMP_NUM_THREADS": "1",
                "HF_HOME": str(folder),
                "ACCELERATE_USE_CPU": "true",
            }
            with open(folder / f"host{rank}.log", "w") as log:
                process = subprocess.Popen(
                    [sys.executable, str(SCRIPT), str(folder), method, str(STEPS)],
                    env=environment,
                    stdout=log,
                    stderr=log,
                    preexec_fn=lambda rank=rank: place(rank),  # type: ignore[misc]
                )
            processes.append(process)
        try:
            codes = [process.wait(timeout=240) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        assert codes == [0, 0], "\n".join(path.read_text()[-3000:] for path in folder.glob("host*.log"))
        left = [sent_by(host) for host in range(2)]
    return left, [torch.load(folder / f"rank{rank}-of-2.pt") for rank in range(2)]


@pytest.mark.timeout(600)
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_fewer_bytes_of_a_trainer_leave_its_interface(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs Accelerate: pip install 'grace-dl[accelerate]'")
    plain, _ = train("none", tmp_path / "plain")
    left, ranks = train("topk:0.01", tmp_path / "topk")
    assert torch.equal(ranks[0]["weight"], ranks[1]["weight"])  # type: ignore[arg-type]
    for rank, found in enumerate(ranks):
        assert found["steps"] == STEPS
        # What the statistics say was sent did leave, with little else, and the difference to plain training was saved.
        assert found["sent"] <= left[rank] < found["dense"] / 3, (found, left, plain)  # type: ignore[operator]
        assert left[rank] < plain[rank] / 3, (left, plain)
