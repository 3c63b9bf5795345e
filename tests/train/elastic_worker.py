"""`train.py` for tests: each rank also writes what it holds right after resuming, to a folder beside the checkpoints."""

from __future__ import annotations

import sys
import time

import torch

from grace_dl.train.loop import TrainingLoop
from grace_dl.train.main import main

_resume = TrainingLoop._resume


def resume(loop: TrainingLoop) -> None:
    _resume(loop)
    folder = loop.folder / "resumed"
    folder.mkdir(parents=True, exist_ok=True)
    state = {"at": time.time(), "rank": loop.world.rank, "size": loop.world.size, "state": loop._state()}
    part = folder / f"{state['at']:.6f}-{loop.world.rank}.part"
    torch.save(state, part)
    part.rename(part.with_suffix(".pt"))


setattr(TrainingLoop, "_resume", resume)  # noqa: B010 (a type checker refuses the assignment)

if __name__ == "__main__":
    sys.exit(main())
