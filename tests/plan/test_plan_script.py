"""`grace plan -- COMMAND`: an unchanged script is measured with several methods."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from grace_dl.cli.main import main

SCRIPT = """
import sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

assert "--own-option" in sys.argv
dist.init_process_group("gloo")
model = DDP(torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(tmp_path: Path, steps: int, methods: str) -> int:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(steps=steps))
    options = ["--methods", methods, "--steps", "8", "--out", str(tmp_path / "plan.json")]
    return main(["plan", *options, "--", *TORCHRUN, str(script), "--own-option"])


def test_an_unchanged_script_is_measured_and_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A sitecustomize that was there before still runs.
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.setenv("PYTHONPATH", str(own))
    assert run(tmp_path, 100_000, "int8,powersgd:2") == 0
    shown = capsys.readouterr().out
    for text in (
        "Measured on 2 workers",
        "no communication",
        "ddp",
        "int8",
        "powersgd:2",
        "Predictions from the profile",
    ):
        assert text in shown
    assert "ended before" not in shown
    assert (tmp_path / "ran").exists()
    content = json.loads((tmp_path / "plan.json").read_text())
    assert (
        content["settings"]["model"] == "Sequential"
        and content["settings"]["parameters"] == 64 * 128 * 2 + 192
    )


def test_a_script_that_ends_early_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, 20, "int8") == 0  # enough for plain DDP and silent steps
    assert "Training ended before every method was measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command, message",
    [
        (["no-such-program"], "there is no program 'no-such-program' in PATH; write"),
        (
            [sys.executable, "-c", "raise SystemExit(3)"],
            "it ended with exit code 3; its own messages above say why",
        ),
        ([sys.executable, "-c", ""], "it made no DistributedDataParallel model"),
    ],
)
def test_commands_that_cannot_be_measured(
    command: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--out", str(tmp_path), "--", *command]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_script_is_a_model_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "cnn", "--", "true"]) == 2
    assert "leave out --profile" in capsys.readouterr().err
