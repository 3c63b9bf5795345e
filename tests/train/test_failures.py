"""Runs that cannot go on say so: non-finite gradients, damaged checkpoints, full disks, folders in use."""

from __future__ import annotations

import random
import re
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grace_dl.errors import ConfigError, DivergedError, GraceError
from grace_dl.train import Config, TrainConfig
from grace_dl.train.checkpoint import FORMAT, Checkpoints
from grace_dl.train.log import read
from training_runs import run, small

FILES = ["configs/synthetic.py"]
GRACE = [*FILES, "configs/grace.py"]


# Gradients that are not finite ------------------------------------------------------------------------------


class Spoiled(nn.Module):
    """A network whose output is NaN on rank 1 in the given calls."""

    def __init__(self, calls: list[int]) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 8 * 8, 10)
        self.calls, self.called = calls, 0

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x.flatten(1))
        if self.training:
            self.called += 1
            if self.called - 1 in self.calls and (
                not torch.distributed.is_initialized() or torch.distributed.get_rank() == 1
            ):
                scores = scores * float("nan")
        return scores


def spoiled(folder: Path, method: str | None, calls: list[int], **more: Any) -> TrainConfig:
    model = {"model": Config(Spoiled, calls=calls)}
    chosen = {} if method is None else {"train.compression": method}
    return small(folder, FILES if method is None else GRACE, {**chosen, **more}).with_overrides(model)


def diverging(rank: int, size: int, configs: list[TrainConfig]) -> None:
    for config in configs:
        with pytest.raises(DivergedError, match="diverged"):
            run(rank, size, config)


METHODS = [None, "none", "fp16", "bf16", "topk:0.1", "signum", "powersgd:2"]


def test_a_run_on_nan_does_not_end_well(launch: Any, tmp_path: Path) -> None:
    """Every step is spoiled, in a run of fewer steps than are skipped at most."""
    always = list(range(1000))
    launch(diverging, 2, [spoiled(tmp_path / str(m), m, always) for m in METHODS], timeout=120)


def skipping(rank: int, size: int, configs: list[TrainConfig]) -> list[dict[str, Any]]:
    return [run(rank, size, config) for config in configs]


def test_single_steps_that_are_not_finite_are_skipped(launch: Any, tmp_path: Path) -> None:
    """Weights stay finite and the same on both ranks; the log has no NaN."""
    configs = [spoiled(tmp_path / str(m), m, [3, 4]) for m in METHODS]
    found = launch(skipping, 2, configs, timeout=120)
    for method, one, two in zip(METHODS, *found):
        for name, weight in one["state"]["model"].items():
            assert torch.equal(weight, two["state"]["model"][name]) and bool(weight.isfinite().all()), method
        records = read(tmp_path / str(method) / "log.jsonl")
        assert all(value == value for record in records for value in record.values()), method


class InfiniteLoss(nn.CrossEntropyLoss):
    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return super().forward(input, target) + float("inf")


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    config = small(tmp_path, FILES).with_overrides({"train.criterion": Config(InfiniteLoss)})
    with pytest.raises(DivergedError):
        run(0, 1, config)


# Checkpoints ------------------------------------------------------------------------------------------------


def test_damage_to_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    """Bits flipped anywhere in the file: it is ignored, or what it holds is unchanged."""
    checkpoints = Checkpoints(tmp_path, 0, 1, keep=2)
    state = {"format": FORMAT, "step": 4, "model": {"w": torch.randn(2000)}, "best": 0.5}
    checkpoints.save(4, state)
    path, chance, noticed = checkpoints.path(4), random.Random(0), 0
    content = path.read_bytes()
    for _ in range(100):
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with _quiet():
            found = checkpoints.load(path)
        noticed += found is None
        if found is not None:
            assert torch.equal(found["model"]["w"], state["model"]["w"]) and found["step"] == 4  # type: ignore[index]
    assert noticed > 80


def _quiet() -> Any:
    import warnings

    return warnings.catch_warnings(action="ignore")


def test_a_file_with_something_else_is_ignored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 0, 1, keep=2)
    torch.save([1, 2], checkpoints.path(4))
    with pytest.warns(UserWarning, match="holds a list, not a checkpoint"):
        assert checkpoints.load(checkpoints.path(4)) is None


def limited(rank: int, size: int, config: TrainConfig) -> str:
    """Files cannot grow beyond a few kilobytes, as on a disk that is full."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(GraceError) as error:
            run(rank, size, config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    return str(error.value)


def test_a_full_disk_is_named(launch: Any, tmp_path: Path) -> None:
    (said,) = launch(limited, 1, small(tmp_path, FILES), init=False)
    assert re.search(
        r"step000000002\.rank0of1\.pt could not be written \(.* are free there\).*Make room", said
    )
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_truncated_record_does_not_matter(launch: Any, tmp_path: Path) -> None:
    config = small(tmp_path, FILES, {"train.num_epochs": 1})
    launch(run, 1, config, init=False)
    (tmp_path / "config.json").write_text('{"configs": {"tr')
    resumed = launch(run, 1, config.with_overrides({"train.num_epochs": 2}), init=False)
    assert "resuming at step 12" in str(resumed[0]["messages"])


# Folders ----------------------------------------------------------------------------------------------------


def two_runs(rank: int, size: int, config: TrainConfig, folder: str) -> str:
    """Rank 1 waits until rank 0 trains, and then starts the same run; both are single processes."""
    started = Path(folder, "started")
    if rank == 1:
        while not started.exists():
            time.sleep(0.01)
        with pytest.raises(ConfigError) as error:
            run(0, 1, config)
        Path(folder, "refused").touch()
        return str(error.value)
    from grace_dl.train import Trainer
    from grace_dl.train.events import Event, StepDone
    from grace_dl.train.world import World

    def report(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 1:
            started.touch()
            while not Path(folder, "refused").exists():
                time.sleep(0.01)

    Trainer(config, report=report, world=World()).run()
    return "done"


def test_two_runs_do_not_share_a_folder(launch: Any, tmp_path: Path) -> None:
    config = small(tmp_path / "run", FILES)
    first, second = launch(two_runs, 2, config, str(tmp_path), init=False)
    assert first == "done"
    assert re.search(r"run is in use by another run \(process \d+ on .*\); wait.*--suffix", second)


def test_a_suffix_stays_within_the_folder_of_runs() -> None:
    with pytest.raises(ConfigError, match=r"--suffix '/\.\./\.\.' must not contain slashes"):
        TrainConfig.from_files(FILES, suffix="/../..")
