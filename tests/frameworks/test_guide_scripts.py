"""The first program of a guide, as a script of its own that is started as the guide says: replicas stay equal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SAVE = """
import os
net, place = {net}, {rank}
weights = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
stats = callback.handle.stats()
torch.save({{"weights": weights, "sent": stats.leaving_bytes, "dense": stats.dense_bytes}}, f"rank{{place}}.pt")
"""
ACCELERATE = [
    *("-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--num_processes", "2"),
    *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"),
]


def first_program(page: Path) -> str:
    found = re.search(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found.group(1)


@pytest.mark.parametrize(
    ("package", "page", "launcher", "net", "rank"),
    [
        # Lightning starts the second process itself.
        ("lightning", "lightning.md", [], "trainer.lightning_module", "trainer.global_rank"),
        ("transformers", "accelerate.md", ACCELERATE, "trainer.model", "trainer.args.process_index"),
    ],
)
def test_a_guide_as_a_script(
    package: str, page: str, launcher: list[str], net: str, rank: str, tmp_path: Path, root: Path
) -> None:
    pytest.importorskip(package, reason=f"needs the package: pip install 'grace-dl[{package}]'")
    script = tmp_path / "train.py"
    script.write_text(first_program(root / "docs" / page) + SAVE.format(net=net, rank=rank))
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
    done = subprocess.run(
        [sys.executable, *launcher, str(script)],
        cwd=tmp_path,
        env={**environment, "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path), "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"rank{place}.pt") for place in range(2))
    assert torch.equal(first["weights"], second["weights"])
    for found in (first, second):
        assert 0 < found["sent"] < found["dense"] / 10
