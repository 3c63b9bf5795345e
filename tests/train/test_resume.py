"""A killed run resumes with the same batches, residuals and random numbers, and ends with the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grace_dl.errors import ConfigError, StateError
from grace_dl.train import TrainConfig
from grace_dl.train.checkpoint import FORMAT, Checkpoints
from grace_dl.train.log import read
from grace_dl.train.resume import check_config
from training_runs import run, small

DGC = ["configs/synthetic.py", "configs/dgc/wm5.py", "configs/dgc/fp16.py"]
# Dropout and normalisation draw from the global generator and keep running statistics.
NETWORK = {
    "model.width": 8,
    "train.compression.compress_ratio": 0.02,
    "train.compression.warmup_coeff": [0.25, 0.1, 0.02, 0.02, 0.02],
    "train.num_batches_per_step": 2,
}


@pytest.fixture
def mine(tmp_path: Path) -> list[str]:
    """A config file of one's own, with a network that has everything that could go wrong."""
    path = tmp_path / "network.py"
    path.write_text(
        "from grace_dl.train import Config, configs\n"
        "from grace_dl.train.models import small_cnn\n"
        "configs.model = Config(small_cnn, num_classes=10, width=8, dropout=0.3)\n"
    )
    return [DGC[0], str(path), *DGC[1:]]


def same(a: Any, b: Any, where: str = "") -> None:
    """Equal to the last bit at every level, except for the time the run took."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a.keys() - ({"seconds", "digest"} if not where else set()):
            same(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for place, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{where}/{place}")
    else:
        assert a == b, where


def timeless(folder: Path) -> list[dict[str, Any]]:
    """The log of a run without the seconds it took."""
    return [{k: v for k, v in record.items() if k != "seconds"} for record in read(folder / "log.jsonl")]


def compare(whole: list[dict[str, Any]], resumed: list[dict[str, Any]], a: Path, b: Path) -> None:
    for one, two in zip(whole, resumed):
        one["state"].pop("configs")
        two["state"].pop("configs")
        same(one["state"], two["state"])
        assert one["result"].metrics == two["result"].metrics
    assert timeless(a) == timeless(b)
    for tensor in ("0.weight", "14.weight"):
        assert torch.equal(resumed[0]["state"]["model"][tensor], resumed[-1]["state"]["model"][tensor])


def test_killed_between_steps_two_ranks(launch: Any, tmp_path: Path, mine: list[str]) -> None:
    whole = launch(run, 2, small(tmp_path / "whole", mine, NETWORK))
    config = small(tmp_path / "killed", mine, NETWORK)
    deaths = launch.outcomes(run, 2, config, 5)  # saved at 2, 3 (epoch) and 4
    assert any("exit code -9" in (death.error or "") for death in deaths) and not any(d.ok for d in deaths)
    resumed = launch(run, 2, config)
    assert "resuming at step 4" in str(resumed[0]["messages"])
    compare(whole, resumed, tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize(("method", "ranks"), [("int8:communicator=alltoall", 2), ("fp16", 3)])
def test_results_that_depend_on_buckets(launch: Any, tmp_path: Path, method: str, ranks: int) -> None:
    """A process that resumes has the buckets of the one that was killed."""
    files = ["configs/synthetic.py", "configs/grace.py"]
    more = {"train.compression": method, "model.width": 48}
    whole = launch(run, ranks, small(tmp_path / "whole", files, more))
    config = small(tmp_path / "killed", files, more)
    launch.outcomes(run, ranks, config, 5)
    resumed = launch(run, ranks, config)
    assert "resuming at step 4" in str(resumed[0]["messages"])
    for one, two in zip(whole, resumed):
        same(one["state"]["model"], two["state"]["model"])


def test_killed_while_it_saves(launch: Any, tmp_path: Path, mine: list[str]) -> None:
    """One process, alone: half a checkpoint is no checkpoint."""
    whole = launch(run, 1, small(tmp_path / "whole", mine, NETWORK), init=False)
    config = small(tmp_path / "killed", mine, NETWORK)
    (death,) = launch.outcomes(run, 1, config, None, 8, init=False)
    assert "exit code -9" in str(death.error)
    assert list((tmp_path / "killed" / "checkpoints").glob(".rank0.*"))
    resumed = launch(run, 1, config, init=False)
    assert "resuming at step 6" in str(resumed[0]["messages"])
    assert not list((tmp_path / "killed" / "checkpoints").glob(".rank0.*"))
    compare(whole, resumed, tmp_path / "whole", tmp_path / "killed")


def die_saving_on_rank_0(rank: int, size: int, config: TrainConfig, step: int) -> Any:
    return run(rank, size, config, dies_saving=step if rank == 0 else None)


def test_killed_when_one_of_two_ranks_has_saved(launch: Any, tmp_path: Path, mine: list[str]) -> None:
    """With the smallest `keep`, ranks that are one checkpoint apart still have one in common."""
    more = {**NETWORK, "train.keep": 2}
    whole = launch(run, 2, small(tmp_path / "whole", mine, more))
    config = small(tmp_path / "killed", mine, more)
    assert not any(death.ok for death in launch.outcomes(die_saving_on_rank_0, 2, config, 8))
    held = [Checkpoints(tmp_path / "killed" / "checkpoints", rank, 2, keep=2).steps() for rank in (0, 1)]
    assert held[0] == [4, 6] and held[1] in ([4, 6], [6, 8])
    resumed = launch(run, 2, config)
    assert "resuming at step 6" in str(resumed[0]["messages"])
    compare(whole, resumed, tmp_path / "whole", tmp_path / "killed")


def spoil(rank: int, size: int, config: TrainConfig, damaged: str, missing: str) -> Any:
    """Resume when rank 1 lacks the newest checkpoint and its next is damaged."""
    if rank == 1:
        Path(missing).unlink()
        Path(damaged).write_bytes(Path(damaged).read_bytes()[:500])
    torch.distributed.barrier()
    with pytest.warns(UserWarning, match="is ignored") if rank == 1 else _nothing():
        return run(rank, size, config)


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_all_ranks_go_back_to_the_newest_step_that_all_have(
    launch: Any, tmp_path: Path, mine: list[str]
) -> None:
    config = small(tmp_path / "run", mine, NETWORK)
    whole = launch(run, 2, config)
    log = timeless(tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    steps = Checkpoints(folder, 1, 2, keep=3).steps()
    assert len(steps) == 3
    resumed = launch(
        spoil, 2, config, *(str(folder / f"step{step:09d}.rank1of2.pt") for step in steps[:0:-1][::-1])
    )
    assert f"resuming at step {steps[0]}" in str(resumed[0]["messages"])
    for one, two in zip(whole, resumed):
        same(one["state"], two["state"])
    assert timeless(tmp_path / "run") == log


def rejected(rank: int, size: int, config: TrainConfig) -> str:
    with pytest.raises((ConfigError, StateError)) as error:
        run(rank, size, config)
    return str(error.value)


def test_a_run_that_cannot_go_on_is_not_overwritten(launch: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = small(folder, DGC[:1])
    launch(run, 2, config)
    missing = list(folder.rglob("*.rank1of2.pt"))
    for path in missing:
        path.unlink()
    before = {path: path.read_bytes() for path in folder.rglob("[!.]*.*")}
    for reason in [*launch(rejected, 2, config), *launch(rejected, 3, config)]:
        assert "step 18: ranks [0] of 2" in reason and "restore the missing files" in reason
    assert before == {path: path.read_bytes() for path in folder.rglob("[!.]*.*")}


def test_one_checkpoint_is_too_few_to_keep(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keep=1 does not fit: it must be a whole number, 2 or more"):
        small(tmp_path, DGC[:1], {"train.keep": 1})


def test_last_three_and_best_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 0, 1, keep=3)
    for step in range(1, 7):
        checkpoints.save(step, {"format": FORMAT, "step": step}, best=step == 2)
    assert checkpoints.steps() == [4, 5, 6]
    best = checkpoints.load(checkpoints.path(None))
    assert best is not None and best["step"] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "best.rank0of1.pt",
        *(f"step00000000{step}.rank0of1.pt" for step in (4, 5, 6)),
    ]


def test_another_run_in_the_same_folder_is_rejected() -> None:
    saved = '{"seed": 1, "train": {"num_epochs": 5, "optimizer": {"lr": 0.1}}}'
    check_config(saved, {"seed": 1, "train": {"num_epochs": 9, "optimizer": {"lr": 0.1}}}, "runs/x")
    with pytest.raises(ConfigError, match=r"train\.optimizer\.lr: 0\.1 then, 0\.2 now.*--suffix"):
        check_config(saved, {"seed": 1, "train": {"num_epochs": 5, "optimizer": {"lr": 0.2}}}, "runs/x")
