"""Small runs on the launcher's ranks, and runs that kill themselves."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from grace_dl.train import TrainConfig, Trainer
from grace_dl.train.checkpoint import Checkpoints
from grace_dl.train.events import Event, Message, StepDone
from grace_dl.train.world import World

SMALL = {
    "dataset.shape": [3, 8, 8],
    "dataset.size": 96,
    "dataset.test_size": 40,
    "dataset.noise": 3.0,
    "model.width": 48,
    "train.batch_size": 8,
    "train.num_epochs": 3,
    "train.log_every": 2,
    "train.save_every_steps": 2,
    "train.tensorboard": False,
}

ELASTIC_FILES = ["configs/synthetic.py", "configs/dgc/wm5.py"]
ELASTIC: dict[str, Any] = {
    "dataset.size": 192,
    "train.num_epochs": 4,
    "train.scale_lr": False,
    "train.compression.warmup_coeff": [0.25, 0.1, 0.02, 0.02, 0.02],
}
"""Settings of runs that continue on a different number of ranks: DGC, with residuals on every rank."""


def small(folder: Path, files: Sequence[str], more: dict[str, Any] | None = None) -> TrainConfig:
    """A small run into `folder`."""
    return TrainConfig.from_files(files, overrides={**SMALL, **(more or {})}, folder=folder, device="cpu")


def _half_a_file(state: Any, path: Any) -> None:
    Path(path).write_bytes(b"PK\x03\x04 half a file")
    os.kill(os.getpid(), signal.SIGKILL)


def run(
    rank: int,
    size: int,
    config: TrainConfig,
    dies_after: int | None = None,
    dies_saving: int | None = None,
) -> dict[str, Any]:
    """Train on this rank; returns the result, the last checkpoint and the messages.

    The process may be killed after a step, or in the middle of writing the next checkpoint.
    """
    messages: list[str] = []

    def report(event: Event) -> None:
        if isinstance(event, Message):
            messages.append(event.text)
        if isinstance(event, StepDone) and event.step == dies_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(event, StepDone) and event.step == dies_saving:
            torch.save = _half_a_file  # type: ignore[assignment]

    alone = World() if not dist.is_initialized() else None
    result = Trainer(config, report=report, world=alone).run()
    checkpoints = Checkpoints(result.folder / "checkpoints", rank, size, keep=2)
    state = checkpoints.load(checkpoints.path(result.step))
    assert state is not None
    state["exchange"]["stats"].pop("seconds")
    return {"state": state, "result": result, "messages": messages}


def unsent(states: list[dict[str, Any]]) -> dict[str, Tensor]:
    """The average over ranks of what was not sent, by parameter."""
    found: dict[str, Tensor] = {}
    for state in states:
        for part in state["exchange"]["handle"]["parts"].values():
            for name, slots in part["memory"].items():
                if "v" in slots:
                    found[name] = found.get(name, 0.0) + slots["v"].double() / len(states)
    return found
