"""`accelerate launch` itself starts two ranks of a script that attaches GRACE."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SCRIPT = Path(__file__).with_name("accelerate_script.py")


def test_accelerate_launch_starts_ranks_that_stay_equal(tmp_path: Path, root: Path) -> None:
    pytest.importorskip("accelerate", reason="needs Accelerate: pip install 'grace-dl[accelerate]'")
    line = "--multi_gpu --num_processes 2"
    assert f"accelerate launch {line} train.py" in (root / "docs" / "accelerate.md").read_text()
    # Everything that a config file of this machine could change is given, and a free port is chosen.
    fixed = "--num_machines 1 --mixed_precision no --dynamo_backend no --main_process_port 0"
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.accelerate_cli",
        "launch",
        *line.split(),
        *fixed.split(),
    ]
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
    done = subprocess.run(
        [*command, str(SCRIPT), str(tmp_path)],
        env={**environment, "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"rank{rank}-of-2.pt") for rank in range(2))
    assert torch.equal(first["weight"], second["weight"])
    for found in (first, second):
        assert found["steps"] == 3
        assert 0 < found["sent"] < found["dense"] / 20
