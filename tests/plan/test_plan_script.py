"""`grace plan -- COMMAND`: an unchanged script is measured with several methods."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grace_dl.cli import plan_script
from grace_dl.cli.commands import plan
from grace_dl.cli.main import main
from grace_dl.cli.plan_script import ScriptRun, warning_of_times
from grace_dl.plan.cluster import Cluster, Link
from grace_dl.plan.profile import Profile

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
sys.exit({code})
"""

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(tmp_path: Path, steps: int, *methods: str, code: int = 0, options: Sequence[str] = ()) -> int:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(steps=steps, code=code))
    options = [*options, "--methods", *methods, "--steps", "8", "--out", str(tmp_path / "plan.json")]
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
    shown = capsys.readouterr().out
    assert "Training ended before every method was measured: not int8" in shown
    assert "no method is faster" not in shown


def test_methods_with_blanks_and_options_of_the_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Cluster] = []

    def predict(arguments: Any, out: Path, page: Path, profile: Profile, cluster: Cluster) -> int:
        seen.append(cluster)
        return 0

    monkeypatch.setattr(plan, "_predict", predict)
    two_levels = "hierarchical(inner=none; outer=int4)"
    more = ["--latency", "70us", "--inner-rate", "3gbit", "--inner-latency", "9us", "--engine", "nccl"]
    assert run(tmp_path, 100_000, "int8", two_levels, options=more) == 0
    assert two_levels in capsys.readouterr().out
    (cluster,) = seen
    assert cluster.outer.latency == 70e-6 and cluster.inner == replace(cluster.inner, bits=3e9, latency=9e-6)
    assert cluster.engine == "nccl" and cluster.workers == 2 and cluster.outer.bits != 10e9


def test_a_command_that_fails_halfway_gets_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, 30, "int8", "int4", code=3) == 2
    found = capsys.readouterr()
    error = "the command ended with exit code 1 while measuring int4; its messages above say why"  # torchrun's code
    assert error in found.err and found.err.splitlines()[-1].startswith("grace plan:")
    assert "int8" in found.out and "Use " not in found.out and "Predictions" not in found.out


@pytest.mark.parametrize(
    "silent, warned", [(0.1, False), (0.125, False), (0.08, False), (0.2, True), (0.7, True), (0.05, True)]
)
def test_a_profile_that_is_not_like_the_measured_step_is_pointed_out(silent: float, warned: bool) -> None:
    link = Link(1e9, 1e-5)
    profile = Profile.from_figures(parameters=1e6, backward=0.06, forward=0.03, update=0.01)
    found = ScriptRun(profile, Cluster(2, 1, link, link), {"ddp": 1.0, "silent": silent}, {})
    assert bool(warning_of_times(found)) == warned
    assert warning_of_times(replace(found, profile=None)) is None


def test_one_worker_has_no_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Link(math.inf, 0.0, goodput=1.0)
    profile = Profile.from_figures(parameters=1e6, backward=0.06)
    seconds = {"ddp": 0.1, "silent": 0.1, "int8": 0.11}
    found = ScriptRun(profile, Cluster(1, 1, alone, alone), seconds, dict.fromkeys(seconds, 0.0))
    monkeypatch.setattr(plan_script, "run_script", lambda *arguments: found)
    assert main(["plan", "--methods", "int8", "--out", str(tmp_path), "--", "true"]) == 0
    assert "One worker has no link" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    "options, message",
    [
        (["--model", "cnn"], "--model has no effect with a command after --; leave out --model"),
        (["--forward", "1ms", "--batch-size", "4"], "--forward, --batch-size have no effect"),
        (["--backward", "1ms", "--update", "1ms"], "--backward, --update have no effect"),
        (["--length", "4", "--image-size", "8"], "--image-size, --length have no effect"),
        (["--check", "x.json"], "--check has no effect"),
        (["--cluster", ""], "'' is no cluster"),
        (["--engine", "mpi"], "engine='mpi'"),
        (["--latency", "soon"], "is no duration"),
        (["--report", "plan.json", "--out", "plan.json"], "--report plan.json is the result file"),
    ],
)
def test_options_that_a_script_does_not_take(
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *options, "--", "touch", "ran"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not (tmp_path / "ran").exists()
