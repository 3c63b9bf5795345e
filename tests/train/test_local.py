"""Local steps in `grace train`: configs, exact resume within a round, and workers that leave or join between rounds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grace_dl.digest import digest
from grace_dl.errors import ConfigError, DivergedError
from grace_dl.train import TrainConfig
from grace_dl.train.checkpoint import Checkpoints
from grace_dl.train.datasets import _Samples
from grace_dl.train.local import rule_of
from grace_dl.train.log import read
from training_runs import run, small

RULES = {
    "average": "local(none; every=30)",
    "diloco": "local(int4; every=30; outer_lr=0.7; outer_momentum=0.9)",
    "sparseloco": "local(chunktopk:64,beta=0.95; every=30)",
    "streaming": "local(int4; every=30; outer_lr=0.7; outer_momentum=0.9; fragments=3; delay=5; merge=0.5)",
}
FILES = ["configs/synthetic.py", "configs/local/sparseloco.py"]
ROUNDS = {"train.local.every": 5, "train.compression": "topk:0.05,dense_below=0"}


# Settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("task", [["lm/transformer", "lm/adamw"], ["cifar/resnet20"]], ids=["lm", "cifar"])
def test_shipped_configs(task: list[str], name: str) -> None:
    config = TrainConfig.from_files([f"configs/{part}.py" for part in (*task, f"local/{name}")])
    assert str(rule_of(config.settings.train)) == RULES[name]
    assert config.settings.train.scale_lr is False
    assert config.with_overrides({"train.local.every": 100}).settings.train.local is not None


@pytest.mark.parametrize(
    "files, settings, said",
    [
        (["local/streaming"], {"train.local.delay": 11}, "configs.train.local: delay=11"),
        (["local/diloco"], {"train.local.every": 0}, "configs.train.local.every=0"),
        (["local/diloco"], {"train.local.evry": 3}, "did you mean 'every'"),
        (["local/diloco"], {"train.local.merge": 1.0}, "configs.train.local: merge=1.0"),
        (["local/diloco"], {"train.local": 30}, "configs.train.local"),
        (["dgc/wm5", "local/average"], {"train.dgc": True}, "exclude each other"),
        ([], {"train.local.every": 30}, "name a config file"),
    ],
)
def test_wrong_settings_get_one_line(files: list[str], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        TrainConfig.from_files(
            ["configs/synthetic.py", *(f"configs/{name}.py" for name in files)], overrides=settings
        )
    assert said in str(error.value)


# Runs ---------------------------------------------------------------------------------------------------------


def saved(folder: Path, ranks: int, step: int) -> list[dict[str, Any]]:
    found = [Checkpoints(folder / "checkpoints", rank, ranks, keep=2) for rank in range(ranks)]
    states = [each.load(each.path(step)) for each in found]
    assert None not in states
    return [state for state in states if state is not None]


def moved(states: list[dict[str, Any]]) -> dict[str, Tensor]:
    """How far each rank has moved from the anchor, by parameter."""
    anchor = states[0]["exchange"]["handle"]["local"]["anchor"]
    return {name: torch.stack([anchor[name] - state["model"][name] for state in states]) for name in anchor}


def owed(states: list[dict[str, Any]]) -> dict[str, list[Tensor]]:
    """The residuals of all ranks, by parameter."""
    found: dict[str, list[Tensor]] = {}
    for state in states:
        for part in state["exchange"]["handle"]["parts"].values():
            for name, slots in part["memory"].items():
                found.setdefault(name, []).append(slots["e"].double())
    return found


def alike(outcomes: list[dict[str, Any]]) -> bool:
    first = outcomes[0]["state"]["model"]
    return all(
        torch.equal(first[name], other["state"]["model"][name]) for other in outcomes[1:] for name in first
    )


@pytest.mark.parametrize("name", ["sparseloco", "streaming"])
def test_a_run_killed_within_a_round_resumes_exactly(launch: Any, tmp_path: Path, name: str) -> None:
    """Ranks differ there, and with a delay an exchange travels; network with running statistics and dropout."""
    network = tmp_path / "network.py"
    network.write_text(
        "from grace_dl.train import Config, configs\n"
        "from grace_dl.train.models import small_cnn\n"
        "configs.model = Config(small_cnn, num_classes=10, width=8, dropout=0.3)\n"
    )
    files = ["configs/synthetic.py", str(network), f"configs/local/{name}.py"]
    # Exchanges at steps 3, 5, 8 (fragments) or 8, 16; checkpoints at 7 and 14.
    settings = {
        "model.width": 8,
        "train.local.every": 8,
        "train.save_every_steps": 7,
        **({"train.local.delay": 2} if name == "streaming" else {}),
    }
    a, b = tmp_path / "a", tmp_path / "b"
    whole = launch(run, 2, small(a, files, settings))
    launch.outcomes(run, 2, small(b, files, settings), 9)
    states = saved(b, 2, 7)
    assert any(bool(change.abs().sum() > 0) for change in moved(states).values())
    resumed = launch(run, 2, small(b, files, settings))
    assert "resuming at step 7 of 18" in resumed[0]["messages"]
    for one, two in zip(whole, resumed):
        assert one["result"].metrics == two["result"].metrics
        for field in ("model", "optimizer", "exchange", "randomness", "meter"):
            assert digest(one["state"][field]) == digest(two["state"][field]), field
    assert alike(resumed)
    # How much of an exchange in flight has been sent depends on time; all of it has at the end.
    timed = {"seconds"} if name == "sparseloco" else {"seconds", "bytes/sent"}
    logs = [read(folder / "log.jsonl") for folder in (a, b)]
    untimed = [[{k: v for k, v in r.items() if k not in timed} for r in log] for log in logs]
    assert untimed[0] == untimed[1]
    records = [r for r in logs[1] if "local/exchanges" in r]
    assert records[-1]["bytes/sent"] == [r for r in logs[0] if "bytes/sent" in r][-1]["bytes/sent"]
    # Those of the rounds, and one of everything at the end.
    assert records[-1]["local/exchanges"] == (3 if name == "sparseloco" else 9)
    sent = [r["bytes/sent"] for r in records]
    assert sent == sorted(sent) and sent[-1] > 0 and sent[0] == 0


def loaded(rank: int, size: int, config: TrainConfig) -> None:
    """Resume, and save again at once."""
    from grace_dl.train.loop import TrainingLoop
    from grace_dl.train.world import current

    loop = TrainingLoop(config.settings, current(), config.folder, lambda event: None)
    loop._resume()
    loop.checkpoints.save(loop.step, loop._state())


def test_workers_that_leave_or_join_within_a_round(launch: Any, tmp_path: Path) -> None:
    """Three ranks become two, then four: what was moved and owed keeps its weight in the average."""
    config = small(tmp_path, FILES, {**ROUNDS, "dataset.size": 192, "train.save_every_steps": 7})
    launch.outcomes(run, 3, config, 8)
    old = saved(tmp_path, 3, 7)
    before = {name: change.mean(0) for name, change in moved(old).items()}
    debts = {name: torch.stack(each).mean(0) for name, each in owed(old).items()}
    assert debts and len({str(change) for change in moved(old)["1.weight"]}) == 3
    for ranks in (2, 4):
        launch(loaded, ranks, config)
        states = saved(tmp_path, ranks, 7)
        for path in (tmp_path / "checkpoints").iterdir():
            if f"of{ranks}." not in path.name:
                path.unlink()
        for name, change in moved(states).items():
            torch.testing.assert_close(change.mean(0), before[name], rtol=1e-4, atol=1e-6)
        for name, each in owed(states).items():
            torch.testing.assert_close(torch.stack(each).mean(0), debts[name], rtol=1e-5, atol=1e-7)
    outcomes = launch(run, 4, config)
    assert alike(outcomes)


def test_what_a_dead_worker_saved_is_not_needed(launch: Any, tmp_path: Path) -> None:
    """Its local progress and residual are lost; the anchor, and the weight of the others' residuals, are not."""
    config = small(tmp_path, FILES, {**ROUNDS, "dataset.size": 192, "train.save_every_steps": 7})
    launch.outcomes(run, 3, config, 8)
    old = saved(tmp_path, 3, 7)
    (tmp_path / "checkpoints" / "step000000007.rank1of3.pt").unlink()
    launch(loaded, 2, config)
    new = saved(tmp_path, 2, 7)
    anchors = [state["exchange"]["handle"]["local"]["anchor"] for state in (*old, *new)]
    survivors = moved([old[0], old[2]])
    debts, after = owed([old[0], old[2]]), owed(new)
    for name, kept in anchors[0].items():
        assert all(torch.equal(kept, anchor[name]) for anchor in anchors)
        for change in moved(new)[name]:
            torch.testing.assert_close(change, survivors[name].mean(0), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(sum(after[name]) / 2, sum(debts[name]) / 3, rtol=1e-5, atol=1e-7)
    outcomes = launch(run, 2, config)
    assert alike(outcomes)
    # A replacement on the same number of ranks starts from the others, too.
    for path in (tmp_path / "checkpoints").glob("*rank0of2.pt"):
        path.unlink()
    again = launch(run, 2, config.with_overrides({"train.num_epochs": 4}))
    assert alike(again) and again[0]["messages"][1].startswith("resuming at step")


def test_methods_at_every_step_still_need_all_ranks(launch: Any, tmp_path: Path) -> None:
    config = small(tmp_path, FILES[:1], {"train.compression": "topk:0.05"})
    launch.outcomes(run, 2, config, 5)
    for path in (tmp_path / "checkpoints").glob("*rank1of2.pt"):
        path.unlink()
    assert all("no step of which every rank" in str(end) for end in launch.outcomes(run, 2, config))


def poisoned(rank: int, size: int, config: TrainConfig, steps: int) -> tuple[str, bool]:
    """Rank 1 gets samples that are not finite for so many batches; returns how the run ended."""
    plain, count = _Samples.batch, [0]

    def batch(self: Any, indices: Tensor, generator: Any) -> tuple[Tensor, Tensor]:
        x, y = plain(self, indices, generator)
        count[0] += generator is not None
        return (x * float("nan") if rank == 1 and count[0] <= steps and generator is not None else x), y

    _Samples.batch = batch  # type: ignore[method-assign]
    try:
        outcome = run(rank, size, config)
    except DivergedError:
        return "diverged", True
    finally:
        _Samples.batch = plain  # type: ignore[method-assign]
    return "ended", bool(torch.stack([p.isfinite().all() for p in outcome["state"]["model"].values()]).all())


@pytest.mark.parametrize("steps, said", [(3, "ended"), (1000, "diverged")])
def test_a_rank_skips_its_own_steps_and_all_diverge_together(
    launch: Any, tmp_path: Path, steps: int, said: str
) -> None:
    config = small(tmp_path, FILES, {**ROUNDS, "dataset.size": 480})
    assert launch(poisoned, 2, config, steps) == [(said, True)] * 2


def test_the_language_model(launch: Any, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} bottles of beer on the wall, {n} bottles of beer. " for n in range(400)))
    files = ["configs/lm/transformer.py", "configs/lm/adamw.py", "configs/local/diloco.py"]
    overrides = {
        "dataset.root": str(text),
        "dataset.most": 16000,
        "dataset.length": 32,
        "model.width": 32,
        "model.layers": 1,
        "model.heads": 2,
        "train.batch_size": 8,
        "train.num_epochs": 3,
        "train.local.every": 10,
        "train.warmup_lr_epochs": 0,
        "train.tensorboard": False,
    }
    config = TrainConfig.from_files(files, overrides=overrides, folder=tmp_path / "run", device="cpu")
    outcomes = launch(run, 2, config)
    assert alike(outcomes)
    losses = [r["loss/test"] for r in read(tmp_path / "run" / "log.jsonl") if "loss/test" in r]
    assert losses[-1] < losses[0] < 5


# Real launches ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_three_of_four_machines_go_on_under_torchrun(root: Path) -> None:
    trial = root / "scripts" / "trials" / "killed_local_steps.py"
    done = subprocess.run(
        [sys.executable, str(trial), "--runs", "1"], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0 and "1 of 1 passed" in done.stdout, done.stdout + done.stderr
