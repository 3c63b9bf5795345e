"""Ray Train, the real package: two workers, one of which is killed, and one worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.timeout(600)
def test_ray_restarts_after_a_lost_worker_and_resumes_exactly(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "GLOO_SOCKET_IFNAME": "lo",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_V2_ENABLED": "1",
    }
    # Ray's processes end with the one that started them, however that ends.
    script = Path(__file__).with_name("ray_cases.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]

    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    for found in ranks:
        assert found["first"] == 2, "the job did not continue from its checkpoint"
        assert 0 < found["leaving"] < found["dense"] / 3
        for resumed, whole, other in zip(found["resumed"], found["whole"], ranks[0]["whole"]):
            assert torch.equal(resumed, whole) and torch.equal(whole, other)
    guide = torch.load(tmp_path / "guide.pt")
    assert (guide["epoch"], guide["bytes"]) == (2, 0)
