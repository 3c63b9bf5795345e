"""`--model my_module:build`: models of users in benchmarks and plans."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest
import torch

from grace_dl.bench.workload import Workload, workloads
from grace_dl.cli.main import main
from grace_dl.errors import ConfigError

MODULE = """
import torch
from torch import nn

class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(64, 64)
    def forward(self, x):
        return self.net(x).square().mean()

def build():
    return WithLoss(), torch.randn(4, 64)

def classifier():
    return nn.Linear(16, 4), (torch.randn(8, 16), torch.randint(4, (8,))), nn.functional.cross_entropy

def nothing(): return None
def raising(): raise RuntimeError("no data")
def no_batch(): return nn.Linear(2, 2), "batch"
def no_loss(): return nn.Linear(2, 2), torch.ones(3, 2)
def misfit(): return WithLoss(), torch.randn(4, 65)
def needs(argument): return argument
def leaving(): raise SystemExit(3)
def number(): return nn.Linear(2, 2), 3

class Leaving(nn.Linear):
    def forward(self, x):
        raise SystemExit

def left(): return Leaving(2, 2), torch.ones(3, 2)
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_project.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_project", raising=False)


@pytest.mark.parametrize("name", ["build", "classifier"])
def test_functions_give_a_model_with_its_loss(name: str) -> None:
    workload = Workload(f"own_project:{name}")
    model = workload.build()
    batch, same, other = (workload.batch(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    model(*batch).backward()
    assert all(p.grad is not None for p in model.parameters())
    assert torch.equal(batch[0], same[0]) and not torch.equal(batch[0], other[0])
    assert str(workload) == f"own_project:{name}" and workload.samples is None


def test_sizes_apply_to_the_other_models_of_a_list() -> None:
    own, net = workloads(["own_project:build", "resnet18"], batch_size=4)
    assert own.batch_size is None and net.batch_size == 4
    with pytest.raises(ConfigError, match="means nothing to own_project:build"):
        Workload("own_project:build", batch_size=4)


@pytest.mark.parametrize(
    "name, message",
    [
        ("no_project:build", "cannot be imported"),
        ("own_project:missing", "has no function 'missing'"),
        ("own_project:nothing", "returned NoneType"),
        ("own_project:raising", "raised RuntimeError"),
        ("own_project:no_batch", "returned a batch of str"),
        ("own_project:no_loss", "the loss must be a single number"),
        ("own_project:misfit", "the model raised RuntimeError"),
        ("own_project:needs", "it is called without arguments"),
        ("own_project:leaving", "own_project:leaving ended the program (exit code 3)"),
        ("own_project:left", "the model ended the program (exit code 0)"),
        ("own_project:number", "returned a batch of int"),
    ],
)
def test_wrong_functions_get_one_line(name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", name, "--methods", "int8"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "code, message",
    [
        ("import sys; sys.exit(4)", "ended the program (exit code 4)"),
        ("import sys; sys.exit()", "ended the program (exit code 0)"),
        ("import sys; sys.exit('no data\\nhere')", "ended the program (no data here)"),
        (
            "import argparse; p = argparse.ArgumentParser(); p.add_argument('--data', required=True); p.parse_args()",
            "ended the program (exit code 2); put what runs training under if __name__ == '__main__'.",
        ),
    ],
)
def test_modules_that_end_the_program_get_one_line(
    code: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = argparse.ArgumentParser.error
    (tmp_path / "own_script.py").write_text(code)
    assert main(["plan", "--model", "own_script:build", "--methods", "int8"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and "usage" not in error
    assert argparse.ArgumentParser.error is before


def test_steps_and_plans_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--model",
        "own_project:build",
        "--methods",
        "ddp",
        "int8",
        "--rounds",
        "3",
        "--out",
        "step.json",
    ]
    assert main(["bench", "step", *options]) == 0
    records = json.loads((tmp_path / "step.json").read_text())["records"]
    assert [(r["model"], r["method"]) for r in records] == [
        ("own_project:build", "ddp"),
        ("own_project:build", "int8"),
    ]
    assert (
        main(["plan", "--model", "own_project:classifier", "--methods", "int8", "--cluster", "2@1gbit"]) == 0
    )
    assert "own_project:classifier" in capsys.readouterr().out
