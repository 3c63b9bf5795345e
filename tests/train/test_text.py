"""The language models, as their configs say, on a small text of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grace_dl.cli.main import main as grace
from grace_dl.train import TrainConfig
from grace_dl.train.log import read
from training_runs import run

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 30
SIZES = {
    "lstm": {"model.width": 16},
    "transformer": {"model.width": 24, "model.layers": 1, "model.heads": 2},
}


def config(folder: Path, text: Path, kind: str) -> TrainConfig:
    overrides = {
        "dataset.root": str(text),
        "dataset.length": 16,
        "train.batch_size": 32,
        "train.num_epochs": 1,
        "train.log_every": 1,
        "train.save_every_steps": 1,
        "train.tensorboard": False,
        **SIZES[kind],
    }
    files = [f"configs/lm/{kind}.py", "configs/dgc/wm0.py"]
    return TrainConfig.from_files(files, overrides=overrides, folder=folder, device="cpu")


@pytest.mark.parametrize("kind", SIZES)
def test_it_trains_and_goes_on_where_it_was_killed(launch: Any, tmp_path: Path, kind: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    (whole,) = launch(run, 1, config(tmp_path / "whole", text, kind), init=False)
    losses = [
        record["loss/train"] for record in read(tmp_path / "whole" / "log.jsonl") if "loss/train" in record
    ]
    assert len(losses) >= 3 and losses[-1] < losses[0]
    killed = config(tmp_path / "killed", text, kind)
    (death,) = launch.outcomes(run, 1, killed, 2, init=False)
    assert "exit code -9" in str(death.error)
    (resumed,) = launch(run, 1, killed, init=False)
    assert "resuming at step" in str(resumed["messages"])
    for name, tensor in whole["state"]["model"].items():
        assert torch.equal(tensor, resumed["state"]["model"][name]), name
    assert whole["result"].metrics == resumed["result"].metrics


def test_a_mistake_that_only_workers_find_is_one_clear_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["train", "-np", "2", "--configs", "configs/lm/lstm.py", "--devices", "cpu"]
    assert grace([*command, "--configs.dataset.root", "nowhere.txt"]) == 2
    said = capfd.readouterr().err
    assert "grace train: root='nowhere.txt' cannot be read" in said
    assert "Traceback" not in said
