"""A small accuracy study: a network on synthetic images."""

from __future__ import annotations

from pathlib import Path

SMALL = {
    "dataset.shape": "[3,8,8]",
    "dataset.size": "192",
    "dataset.test_size": "64",
    "model.width": "48",
    "train.batch_size": "16",
    "train.log_every": "2",
}
TASK = ["--task", "synthetic", *(word for k, v in SMALL.items() for word in (f"--configs.{k}", v))]


def study(out: Path, *more: str) -> list[str]:
    return ["bench", "accuracy", *TASK, "--epochs", "2", "--out", str(out), *more]
