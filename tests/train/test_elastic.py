"""A run continues on a different number of ranks, from the same position, without losing what ranks have not sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from grace_dl.errors import StateError
from grace_dl.train import TrainConfig
from grace_dl.train.checkpoint import Checkpoints
from grace_dl.train.log import read
from training_runs import ELASTIC, ELASTIC_FILES, SMALL, run, small, unsent


def saved(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """The newest checkpoint of all ranks."""
    found = [Checkpoints(folder / "checkpoints", rank, ranks, keep=2) for rank in range(ranks)]
    states = [each.load(each.path(each.steps()[-1])) for each in found]
    return [state for state in states if state is not None]


def loaded(rank: int, size: int, config: TrainConfig) -> dict[str, Any]:
    """Resume, and save again at once: what was loaded, and where the run is."""
    from grace_dl.train.loop import TrainingLoop
    from grace_dl.train.world import current

    loop = TrainingLoop(config.settings, current(), config.folder, lambda event: None)
    loop._resume()
    loop.checkpoints.save(loop.step, loop._state())
    return {
        "step": loop.step,
        "position": loop.position,
        "total": loop.total,
        "rate": loop.rate(loop.position),
    }


def test_two_three_one_two_ranks(launch: Any, tmp_path: Path) -> None:
    """Each time the run is killed between checkpoints, and goes on from the last one with another number of ranks."""
    config = small(tmp_path, ELASTIC_FILES, ELASTIC)
    launch.outcomes(run, 2, config, 21)
    old = saved(tmp_path, 2)
    assert old[0]["step"] == 20
    before = unsent(old)
    assert before and all(bool(v.any()) for v in before.values())
    seen = 20 * 2 * 8  # samples
    for ranks in (3, 1, 2):
        previous = list(tmp_path.rglob("step*.pt"))
        (where, *others) = launch(loaded, ranks, config)
        for path in previous:
            path.unlink()
        assert where["step"] == 20 and all(other == where for other in others)
        # At most one step of the new size is skipped, and none is repeated.
        assert seen <= where["position"] * ranks * 8 < seen + ranks * 8
        seen = where["position"] * ranks * 8
        assert where["total"] == 20 - where["position"] + 4 * (192 // (8 * ranks))
        after = unsent(saved(tmp_path, ranks))
        for name, expected in before.items():
            assert torch.allclose(after[name], expected, rtol=1e-5, atol=1e-7), name
    found = launch(run, 2, config)
    weights = [outcome["state"]["model"] for outcome in found]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    records = [r for r in read(tmp_path / "log.jsonl") if "loss/train" in r]
    assert [r["step"] for r in records] == sorted({r["step"] for r in records})
    assert records[-1]["loss/train"] < records[9]["loss/train"] < records[0]["loss/train"]


def test_old_files_go_away(tmp_path: Path) -> None:
    for rank in range(3):
        Checkpoints(tmp_path, rank, 3, keep=2).save(4, {"step": 4}, best=True)
    for step in (5, 6, 7):
        for rank in range(2):
            Checkpoints(tmp_path, rank, 2, keep=2).save(step, {"step": step}, best=step == 6)
        held = {path.name for path in tmp_path.glob("*of3.pt")}
        # Until there are enough new ones, what ranks that are gone have saved stays.
        assert len(held) == {5: 6, 6: 0, 7: 0}[step]
    assert len(list(tmp_path.iterdir())) == 2 * 3


def differing(rank: int, size: int, config: TrainConfig) -> str:
    with pytest.raises(StateError) as error:
        run(rank, size, config)
    return str(error.value)


def test_replicas_that_differ_are_refused(launch: Any, tmp_path: Path) -> None:
    config = small(tmp_path, ELASTIC_FILES[:1], {"train.num_epochs": 1})
    launch(run, 2, config)
    for step in Checkpoints(tmp_path / "checkpoints", 1, 2, keep=2).steps():
        checkpoints = Checkpoints(tmp_path / "checkpoints", 1, 2, keep=9)
        state = checkpoints.load(checkpoints.path(step))
        assert state is not None
        next(iter(state["model"].values())).view(-1)[0] += 1e-3
        checkpoints.save(step, state)
    assert all("ranks [1] have weights" in said for said in launch(differing, 2, config))
    assert all("ranks 0 and 1 have different weights" in said for said in launch(differing, 3, config))


# Real launches ----------------------------------------------------------------------------------------------


def torchrun(folder: Path, root: Path, workers: int, *more: str) -> subprocess.Popen[str]:
    settings = {**SMALL, **ELASTIC, "train.num_epochs": 40, "train.save_every_steps": 5, "train.log_every": 5}
    overrides = [word for path, value in settings.items() for word in (f"--configs.{path}", repr(value))]
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={workers}"),
        *("--max-restarts=2", "--monitor-interval=0.1", str(root / "examples" / "dgc" / "train.py")),
        *(
            "--configs",
            *ELASTIC_FILES,
            *overrides,
            "--configs.train.save_path",
            str(folder),
            "--devices",
            "cpu",
            *more,
        ),
    ]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    return subprocess.Popen(
        command,
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_step(folder: Path, step: int, limit: float = 120) -> None:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        log = folder / "log.jsonl"
        if log.exists() and any(record["step"] >= step for record in read(log)):
            return
        time.sleep(0.05)
    raise AssertionError(f"{folder} did not reach step {step}")


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout
    return [int(word) for word in listed.split()]


def test_a_killed_worker_under_torchrun_comes_back(tmp_path: Path, root: Path) -> None:
    """Then the same command with three workers goes on, instead of starting anew."""
    job = torchrun(tmp_path, root, 2)
    try:
        wait_for_step(tmp_path, 20)
        os.kill(workers_of(job)[-1], 9)
        said, _ = job.communicate(timeout=240)
    finally:
        job.kill()
    assert job.returncode == 0, said
    assert "resuming at step" in said
    records = read(tmp_path / "log.jsonl")
    assert records[-1]["step"] == 480
    job = torchrun(tmp_path, root, 3, "--configs.train.num_epochs", "42")
    try:
        said, _ = job.communicate(timeout=240)
    finally:
        job.kill()
    assert job.returncode == 0 and "resuming at step 480 of 496" in said, said
    assert json.loads((tmp_path / "config.json").read_text())["world"]["size"] == 3
