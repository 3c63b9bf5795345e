"""Records of accuracy studies, read from what training writes to its folder: config.json and log.jsonl."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, GraceError
from ..train.log import read
from .results import label_of
from .target import ACCURACY, LOSS
from .training_methods import method_in
from .virtual_hosts import LOOPBACK, UNLIMITED_BITS

_METRIC = "acc/test_"


def curve(folder: Path) -> list[dict[str, float]]:
    """Every evaluation of a run, with the training time and the bytes sent per rank up to then."""
    sent: dict[int, float] = {}
    points: dict[int, dict[str, float]] = {}
    for entry in read(folder / "log.jsonl"):
        step = entry["step"]
        if "bytes/sent" in entry:
            sent[step] = entry["bytes/sent"]
        score = next((value for name, value in entry.items() if name.startswith(_METRIC)), None)
        if score is not None:
            points[step] = {
                "epoch": entry["epoch"] + 1,
                "step": step,
                "seconds": entry["seconds"],
                "bytes": sent.get(step, 0),
                "accuracy": score,
                "loss": entry["loss/test"],
            }
    return list(points.values())


def record(folder: Path, failed: str | None = None) -> dict[str, Any]:
    """The fields of a record from the folder of a run: its config and its curve."""
    config = json.loads((folder / "config.json").read_text())
    points = curve(folder)
    if failed:
        points = [point for point in points if point["accuracy"] == point["accuracy"]]
    last = points[-1] if points and not failed else None
    return {
        "task": task_of(config["configs"]),
        "workers": config["world"]["size"],
        "epochs": config["configs"]["train"]["num_epochs"],
        "seed": config["configs"]["seed"],
        "judged_by": judged_by(config["configs"]["train"]["metric"]),
        "parameters": config["parameters"],
        "steps": config["steps"],
        "failed": failed,
        "accuracy": last and last["accuracy"],
        "loss": last and last["loss"],
        "best_accuracy": max((point["accuracy"] for point in points), default=None),
        "seconds": last and last["seconds"],
        "leaving_bytes": last and last["bytes"],
        "curve": points,
    }


@dataclass(frozen=True)
class Logged:
    """What a run logged of its training steps: the time of training and the loss up to then."""

    seconds: Mapping[int, float]
    losses: Mapping[int, float]


def logged(folder: Path) -> Logged:
    """The log of a run's training steps; empty if it is gone."""
    path = folder / "log.jsonl"
    entries = [entry for entry in read(path) if "loss/train" in entry] if path.is_file() else []
    return Logged({e["step"]: e["seconds"] for e in entries}, {e["step"]: e["loss/train"] for e in entries})


def retimed(
    known: Mapping[str, Any], full: Logged, timed: Mapping[str, Any], short: Logged
) -> dict[str, Any]:
    """The curve of a full run with the times of a shorter one, which trains the same over another link.

    Steps after the timed ones are assumed to be as fast as the second half of these. Both runs must be identical except
    for the link: in their losses of training, and in their evaluations.
    """
    scores = {point["step"]: point["accuracy"] for point in known["curve"]}
    end = max(short.seconds, default=0)
    differ = [p for p in timed["curve"] if scores.get(p["step"], p["accuracy"]) != p["accuracy"]]
    # The last record of a run that ends within an interval of the log is a mean over fewer steps.
    differ += [s for s, loss in short.losses.items() if s != end and full.losses.get(s, loss) != loss]
    if differ or timed["failed"]:
        raise GraceError(
            f"{timed['method']}, seed {timed['seed']}: training differs between {timed['rate']} and {known['rate']}, so one "
            "curve cannot stand for both; leave out --timed-epochs."
        )
    half = max((s for s in short.seconds if s <= end / 2), default=0)
    pace = (short.seconds[end] - short.seconds.get(half, 0.0)) / (end - half)
    curve = [
        {**p, "seconds": short.seconds.get(p["step"], short.seconds[end] + pace * (p["step"] - end))}
        for p in known["curve"]
    ]
    return {"curve": curve, "seconds": curve[-1]["seconds"]}


def judged_by(metric: str) -> str:
    """The field of an evaluation for `configs.train.metric`."""
    return LOSS if metric.startswith("loss") else ACCURACY


def task_of(configs: Mapping[str, Any]) -> str:
    """A short name of what a run trains, such as `small_cnn on CIFAR`."""
    model, data = (configs[part]["()"].rpartition(".")[2] for part in ("model", "dataset"))
    return f"{model} on {configs['dataset'].get('name', data)}"


def imported(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """Records of finished `grace train` runs, and a message for each skipped run."""
    found: list[dict[str, Any]] = []
    remarks = []
    for folder in folders:
        made = _import(folder)
        reached = made["curve"][-1]["step"] if made["curve"] else 0
        if reached < made["steps"]:
            remarks.append(
                f"{folder} is left out: it ended at step {reached} of {made['steps']}; train it to the end."
            )
        else:
            found.append(made)
    _tell_apart(found)
    return found, remarks


def _import(folder: Path) -> dict[str, Any]:
    missing = [name for name in ("config.json", "log.jsonl") if not (folder / name).is_file()]
    if missing:
        raise ConfigError(
            f"{folder} is no folder of a training run: it has no {' and no '.join(missing)}; name folders "
            "that `grace train` or train.py has written, such as runs/cifar.small."
        )
    try:
        config = json.loads((folder / "config.json").read_text())
        found = record(folder)
        return {
            **found,
            "rate": LOOPBACK,
            "bits": UNLIMITED_BITS,
            "method": method_in(config["configs"], found["steps"] // found["epochs"]),
            # The load on the machine is unknown, so times are recorded but not compared.
            "timed": False,
            "run": folder.name,
            "versions": config["versions"],
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder} cannot be read as a training run ({error!r}); leave it out, or run it again."
        ) from error


def _tell_apart(records: list[dict[str, Any]]) -> None:
    """Label runs without a known difference by the names of their folders."""
    seen: set[str] = set()
    for r in records:
        if identity(r) in seen:
            r["variant"] = r["run"]
        seen.add(identity(r))


def identity(record: Mapping[str, Any]) -> str:
    """The key that identifies a record in its file."""
    names = ("task", "epochs", "workers", "rate")
    return "/".join([*(str(record[name]) for name in names), label_of(record), str(record["seed"])])
