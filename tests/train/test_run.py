"""Whole runs: what they learn and leave behind, on both engines, under launchers, and from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch

from grace_dl.cli.main import main as grace
from grace_dl.errors import GraceError
from grace_dl.train import TrainConfig
from grace_dl.train.events import Evaluated, Started, StepDone
from grace_dl.train.log import read
from grace_dl.train.main import main as train_py
from grace_dl.train.meters import Meter, flatten
from grace_dl.train.progress import ProgressDisplay
from training_runs import SMALL, run, small

DGC = ["configs/synthetic.py", "configs/dgc/wm5.py"]
LEARNS = {"dataset.size": 256, "dataset.noise": 1.0, "train.num_epochs": 4, "train.optimizer.lr": 0.05}
EXACT = {"dataset.noise": 0.5, "train.scale_lr": False, "train.num_epochs": 2}
HALVES = {"train.batch_size": 4, "train.num_batches_per_step": 2}
REDUCER = {"train.engine": "reducer"}


def weights(outcome: dict[str, Any]) -> torch.Tensor:
    return torch.cat([t.reshape(-1) for t in outcome["state"]["model"].values()])


def test_a_run_learns_and_leaves_its_records(launch: Any, tmp_path: Path) -> None:
    found = launch(run, 2, small(tmp_path, DGC, LEARNS))
    assert torch.equal(weights(found[0]), weights(found[1]))
    assert found[0]["result"].metrics == found[1]["result"].metrics
    assert found[0]["result"].metrics["acc/test_top1"] > 0.9 and found[0]["result"].step == 64
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["configs"]["train"]["compression"]["warmup_coeff"] == [0.25, 0.063, 0.015, 0.004, 0.001]
    assert config["world"]["size"] == 2 and config["versions"]["torch"] == torch.__version__
    records = read(tmp_path / "log.jsonl")
    trained = [r for r in records if "loss/train" in r]
    assert trained[-1]["loss/train"] < trained[0]["loss/train"]
    assert {"lr", "bytes/sent", "compression/ratio", "acc/train_top1", "acc/train_top5"} <= trained[0].keys()
    # An epoch has 16 steps: the share that is sent follows the warm-up, and the bytes follow the share.
    assert [r["compression/share"] for r in trained[7::8]] == [0.25, 0.063, 0.015, 0.004]
    ratios = [r["compression/ratio"] for r in trained[7::8]]
    assert ratios == sorted(ratios) and ratios[-1] > 4 * ratios[0]
    # Linear scaling with warm-up: from the rate of one rank to that of two, over the first epoch.
    assert trained[0]["lr"] == pytest.approx(0.05 * (1 + 1 / 16)) and trained[-1]["lr"] == pytest.approx(0.1)
    tested = [r for r in records if "acc/test_top1" in r]
    assert len(tested) == 4 and tested[-1]["acc/test_top1_best"] == max(r["acc/test_top1"] for r in tested)
    assert found[0]["result"].best == tested[-1]["acc/test_top1_best"]
    assert found[0]["result"].sent_bytes == trained[-1]["bytes/sent"]
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert {"best.rank0of2.pt", "best.rank1of2.pt"} < names and len(names) == 8


def several(rank: int, world: int, runs: dict[str, TrainConfig]) -> dict[str, Any]:
    return {name: run(rank, world, config) for name, config in runs.items()}


def test_engines_and_accumulation_agree(launch: Any, tmp_path: Path) -> None:
    """DDP or not, one large batch or two small ones: the same steps."""
    plain = ["configs/synthetic.py"]
    topk = {"train.compression": "topk:1.0"}
    choices: dict[str, Any] = {
        "ddp": (DGC, {}),
        "reducer": (DGC, REDUCER),
        "plain": (plain, {}),
        "plain reducer": (plain, REDUCER),
        "halves": (plain, HALVES),
        "halves reducer": (plain, {**HALVES, **REDUCER}),
        "topk": ([*plain, "configs/grace.py"], topk),
    }
    runs = {name: small(tmp_path / name, files, {**EXACT, **more}) for name, (files, more) in choices.items()}
    found = launch(several, 2, runs, timeout=120)[0]
    assert torch.equal(weights(found["ddp"]), weights(found["reducer"]))
    assert not torch.equal(weights(found["ddp"]), weights(found["plain"]))
    for name in ("plain reducer", "halves", "halves reducer", "topk"):
        assert torch.allclose(weights(found[name]), weights(found["plain"]), atol=1e-5), name
    # What plain DDP sends: a ring all-reduce of all gradients.
    dense = 4 * weights(found["plain"]).numel()
    steps = found["plain"]["state"]["step"]
    assert found["plain"]["state"]["exchange"]["stats"]["leaving_bytes"] == dense * steps


def test_warm_up_in_steps(launch: Any, tmp_path: Path) -> None:
    more = {"train.compression.warmup_steps": 2, "train.num_steps": 12, "train.log_every": 1}
    launch(run, 2, small(tmp_path, DGC, more))
    shares = [r["compression/share"] for r in read(tmp_path / "log.jsonl") if "compression/share" in r]
    assert shares == [0.25, 0.25, 0.063, 0.063, 0.015, 0.015, 0.004, 0.004, 0.001, 0.001, 0.001, 0.001]


def command_line(folder: Path, *more: str) -> list[str]:
    overrides = [word for path, value in SMALL.items() for word in (f"--configs.{path}", repr(value))]
    return [
        "--configs",
        *DGC,
        *overrides,
        "--configs.train.save_path",
        str(folder),
        "--devices",
        "cpu",
        *more,
    ]


def test_under_mpirun_and_by_itself(tmp_path: Path, root: Path) -> None:
    """Two processes with mpirun's variables train; `grace train -np 2` then evaluates what they left."""
    job = uuid.uuid4().hex
    processes = []
    for rank in range(2):
        variables = {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "PMIX_NAMESPACE": job,
        }
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
        processes.append(
            subprocess.Popen(
                [sys.executable, str(root / "examples" / "dgc" / "train.py"), *command_line(tmp_path)],
                env={**environment, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = [process.communicate(timeout=280)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert "2 ranks, cpu" in said[0] and "acc/test_top5" in said[0] and "epoch 3" in said[0]
    assert "acc" not in said[1]
    done = subprocess.run(
        [sys.executable, "-m", "grace_dl.cli", "train", "-np", "2", *command_line(tmp_path, "--evaluate")],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    tested = [r for r in read(tmp_path / "log.jsonl") if "acc/test_top1" in r]
    best = max(r["acc/test_top1"] for r in tested)
    assert f"acc/test_top1 {best:.4f}" in done.stdout


# Mistakes and the screen --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--configs", "configs/cifar/resnet21.py"], "did you mean 'configs/cifar/resnet20.py'"),
        (["--configs", *DGC, "--configs.train.num_epoch", "3"], "did you mean 'num_epochs'"),
        (["--configs", "configs/dgc/wm5.py"], "configs.dataset is not set"),
        (["--configs", *DGC, "--configs.train.metric", "accuracy"], "measured: loss/test"),
        (["--configs", *DGC, "--devices", "tpu"], "auto, cpu, gpu"),
        (["--configs", *DGC, "--configs.train.compression.warmup_coeff", "[0.5]"], "1 entries"),
        (["--configs", *DGC, "--evaluate"], "nothing to evaluate"),
        (
            ["--configs", *DGC[:1], "configs/grace.py", "--configs.train.compression", "powersgd:raank=4"],
            "unknown setting 'raank'",
        ),
    ],
)
def test_mistakes_are_one_clear_line(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train_py(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("train.py: ") and said in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("model.width", "0", "configs.model has a parameter without elements"),
        ("model.width", "-1", "configs.model: "),
        ("train.optimizer.lr", "-1", "configs.train.optimizer: torch.optim.sgd.SGD could not be built: "),
    ],
)
def test_values_that_classes_reject_are_one_clear_line(
    setting: str,
    value: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train_py(["--configs", "configs/synthetic.py", f"--configs.{setting}", value]) == 2
    error = capsys.readouterr().err
    assert f"train.py: {said}" in error and "settings." in error and "Traceback" not in error


@pytest.mark.parametrize("files", [DGC[:1], DGC])
def test_a_run_that_diverges_says_so(files: list[str], tmp_path: Path) -> None:
    config = small(tmp_path, files, {"train.optimizer.lr": 1e30, "train.scale_lr": False})
    with pytest.raises(GraceError, match="diverged"):
        run(0, 1, config)


def test_workers_are_not_started_for_a_mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert grace(["train", "-np", "2", "--configs", *DGC, "--configs.sed", "1"]) == 2
    assert "did you mean 'seed'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        grace(["train", "-np", "0", "--configs", *DGC])
    assert ended.value.code == 2 and "-np/--num-proc: '0' must be" in capsys.readouterr().err
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert grace(["train", "-np", "2", "--configs", *DGC]) == 2
    assert "started already" in capsys.readouterr().err


def test_the_bar_shows_loss_accuracy_speed_and_bytes() -> None:
    import io

    from rich.console import Console

    out = io.StringIO()
    with ProgressDisplay(Console(file=out, force_terminal=True, width=140)) as display:
        display(Started(0, 10))
        display(StepDone(5, 1, loss=0.25, accuracy=0.5, samples_per_second=1234.0, sent_bytes=5_000_000))
        display(Evaluated(5, 1, {"acc/test_top1": 0.75}, sent_bytes=5_000_000))
    shown = out.getvalue()
    for part in ("epoch 2", "loss 0.2500", "acc 50.0 %", "1,234/s", "5.00 MB", "acc/test_top1 0.7500"):
        assert part in shown


def test_accuracy_among_the_k_likeliest() -> None:
    meter = Meter([1, 2, 5], torch.device("cpu"))
    scores = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [1.0, 3.0, 2.0]])
    meter.add(torch.tensor(0.5), scores, torch.tensor([0, 1, 0]))
    expected = {"loss/x": 0.5, "acc/x_top1": 1 / 3, "acc/x_top2": 2 / 3, "acc/x_top5": 1.0}
    assert meter.result("x") == pytest.approx(expected)
    rows, targets = flatten(torch.zeros(2, 7, 128), torch.zeros(2, 7))
    assert rows.shape == (14, 128) and targets.shape == (14,)
