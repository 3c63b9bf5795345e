"""`grace train` is killed at random moments and resumed: the end is bit-identical to that of the uninterrupted run.

Two ranks; one of them, or both, are killed up to three times, at any moment from the start of the processes on.
"""

from __future__ import annotations

import functools
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trial import Job, describe, run

WORLD = 2
PATIENCE = 5.0
"""Seconds that a rank may go on alone."""
METHODS = [
    "none",
    "dgc:0.01,warmup_stages=2,warmup_steps=40",
    "topk:0.05",
    "powersgd:2",
    "int8:memory=residual,communicator=alltoall",
]
SETTINGS: dict[str, Any] = {
    "dataset.shape": [3, 8, 8],
    "dataset.size": 960,
    "dataset.test_size": 40,
    "dataset.noise": 3.0,
    "train.batch_size": 8,
    "train.num_epochs": 5,
    "train.save_every_steps": 7,
    "train.tensorboard": False,
}


def train(folder: str, method: str) -> None:
    """One rank of a run; a network with dropout and running statistics."""
    from grace_dl.train import Config, TrainConfig
    from grace_dl.train.main import run_here
    from grace_dl.train.models import small_cnn

    network = {"model": Config(small_cnn, num_classes=10, width=8, dropout=0.3), "train.compression": method}
    files = ["configs/synthetic.py", "configs/grace.py"]
    run_here(TrainConfig.from_files(files, overrides={**SETTINGS, **network}, folder=folder, device="cpu"))


def ended(folder: Path) -> list[str]:
    """A digest of what each rank has at its end, except for times."""
    from grace_dl.digest import digest
    from grace_dl.train.checkpoint import Checkpoints

    found = []
    for rank in range(WORLD):
        checkpoints = Checkpoints(folder / "checkpoints", rank, WORLD, keep=2)
        state = checkpoints.load(checkpoints.path(checkpoints.steps()[-1]))
        assert state is not None
        fields = ("step", "model", "optimizer", "randomness", "meter", "marks", "best", "skipped")
        found.append(digest([[state[field] for field in fields], state["exchange"]["handle"]]))
    return found


@functools.cache
def uninterrupted(method: str) -> tuple[list[str], float]:
    """The end of the run without interruption, and its duration."""
    with tempfile.TemporaryDirectory() as folder:
        with Job([__file__, "--rank", folder, method], WORLD) as job:
            ranks = job.wait(limit=1200)
            seconds = job.seconds
        if any(rank.code for rank in ranks):
            raise SystemExit(describe(ranks))
        return ended(Path(folder)), seconds


def trial(number: int, chance: random.Random) -> tuple[str, str | None]:
    method = METHODS[number % len(METHODS)]
    expected, seconds = uninterrupted(method)
    kills = chance.randint(1, 3)
    with tempfile.TemporaryDirectory() as folder:
        for attempt in range(kills + 1):
            with Job([__file__, "--rank", folder, method], WORLD) as job:
                if attempt < kills:
                    time.sleep(chance.uniform(0, seconds))
                    for rank in chance.sample(range(WORLD), chance.randint(1, WORLD)):
                        job.send(rank, signal.SIGKILL)
                # A launcher ends the others after a while; one that waits for connections would wait for long.
                ranks = job.wait(limit=job.seconds + PATIENCE if attempt < kills else 1200)
        if any(rank.code != 0 for rank in ranks):
            return method, f"after {kills} kills, the last start failed\n{describe(ranks)}"
        same = ended(Path(folder)) == expected
    return method, None if same else f"after {kills} kills, the result differs\n{describe(ranks)}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        train(*sys.argv[2:])
    else:
        run(str(__doc__), trial, runs=50)
