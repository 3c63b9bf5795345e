"""Small runs on the launcher's ranks, and runs that kill themselves."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch

from grace_dl.train import configs
from grace_dl.train.engine import Trainer
from grace_dl.train.main import prepare
from grace_dl.train.world import World

SMALL = {
    "dataset.shape": "[3, 8, 8]",
    "dataset.size": "96",
    "dataset.test_size": "40",
    "dataset.noise": "3.0",
    "model.width": "48",
    "train.batch_size": "8",
    "train.num_epochs": "3",
    "train.log_every": "2",
    "train.save_every_steps": "2",
    "train.tensorboard": "False",
}


def settings(folder: Path, files: list[str], **more: str) -> argparse.Namespace:
    """The arguments of a small run into `folder`; dots in names are written as two underscores."""
    overrides = {**SMALL, "train.save_path": str(folder)}
    overrides.update({name.replace("__", "."): text for name, text in more.items()})
    return argparse.Namespace(configs=files, overrides=list(overrides.items()), devices="cpu", suffix="")


class Mortal(Trainer):
    """A trainer whose process is killed after a step, or in the middle of writing a checkpoint."""

    dies_after: int | None = None
    dies_saving: int | None = None

    def _step(self, passes: Any) -> None:
        super()._step(passes)
        if self.step == self.dies_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.step == self.dies_saving:
            torch.save = _half_a_file  # type: ignore[assignment]


def _half_a_file(state: Any, path: Any) -> None:
    Path(path).write_bytes(b"PK\x03\x04 half a file")
    os.kill(os.getpid(), signal.SIGKILL)


def run(
    rank: int,
    size: int,
    arguments: argparse.Namespace,
    dies_after: int | None = None,
    dies_saving: int | None = None,
) -> dict[str, Any]:
    """Train on this rank; returns all state that a run ends with."""
    world = World(rank, size, rank, size, "test")
    folder = prepare(arguments, world)
    folder.mkdir(parents=True, exist_ok=True)
    events: list[Any] = []
    trainer = Mortal(configs, world, folder, events.append)
    trainer.dies_after, trainer.dies_saving = dies_after, dies_saving
    scores = trainer.run()
    state = trainer._state()
    for seconds in ("stats",):
        state["exchange"][seconds].pop("seconds")
    return {"state": state, "scores": scores, "events": [e for e in events if e[0] == "say"]}
