"""The command line of training, for `train.py` and for `grace train`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, GraceError
from . import files, overrides
from .schema import configs
from .world import World, find, join, leave

RUNS = "runs"
SILENCE = 1800.0
"""Seconds without a sign of life after which local workers are ended: fetching data may take long."""

Report = Callable[[tuple[Any, ...]], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that both commands have."""
    parser.add_argument(
        "--configs", nargs="+", required=True, metavar="FILE", help="config files, run in this order"
    )
    parser.add_argument(
        "--devices", help="auto, cpu, gpu, or numbers of GPUs such as 0,1 (default: configs.device)"
    )
    parser.add_argument(
        "--evaluate", action="store_true", help="only evaluate the best checkpoint of this run"
    )
    parser.add_argument(
        "--suffix", default="", help="ending of the run's folder, for runs that differ in settings"
    )
    parser.epilog = (
        "Any setting may be given as --configs.train.num_epochs 500; values are written as in Python. Runs are kept in "
        f"{RUNS}/, named after their config files and number of workers, and resume by themselves."
    )
    overrides.accept(parser)


def prepare(arguments: argparse.Namespace, world: World) -> Path:
    """Fill in the tree from files and command line; returns the run's folder."""
    files.load(arguments.configs, configs)
    overrides.apply(configs, arguments.overrides)
    if arguments.devices is not None:
        configs.device = arguments.devices
    configs.resolve()
    if configs.train.save_path is None:
        configs.train.save_path = str(
            Path(RUNS) / f"{files.label(arguments.configs)}{arguments.suffix}.np{world.size}"
        )
    return Path(configs.train.save_path)


def train(arguments: argparse.Namespace, world: World, folder: Path, report: Report) -> dict[str, float]:
    """A run of the prepared tree, or the evaluation of one, on this rank."""
    from .engine import Trainer

    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(configs, world, folder, report)
    trainer.report(("say", f"{folder}: {world.size} rank{'s' if world.size > 1 else ''}, {trainer.device}"))
    scores = trainer.evaluate_best() if arguments.evaluate else trainer.run()
    trainer.report(("say", "  ".join(f"{name} {value:.4f}" for name, value in scores.items())))
    return scores


def one_rank(arguments: argparse.Namespace) -> None:
    """The part of the process that a launcher has started, or all of it where none has."""
    from .show import Show

    world = find()
    folder = prepare(arguments, world)
    joined = join(world, _backend(configs.device))
    with Show() as show:
        train(arguments, world, folder, show)
    if joined:
        leave(world)


def _backend(devices: str) -> str:
    import torch

    return "nccl" if devices != "cpu" and torch.cuda.is_available() else "gloo"


def work(
    rank: int, size: int, emit: Callable[[Any], None], arguments: argparse.Namespace
) -> dict[str, float]:
    """One of the workers that `grace train -np` starts."""
    world = World(rank, size, rank, size, "grace")
    return train(arguments, world, prepare(arguments, world), emit)


def several(arguments: argparse.Namespace, workers: int) -> None:
    """Start local workers and show their progress."""
    from ..workers import run_workers
    from .show import Show

    if workers < 1:
        raise ConfigError(f"-np {workers} must be 1 or more.")
    if find().launcher != "none":
        raise ConfigError(f"-np {workers} under {find().launcher}: ranks are started already; leave -np out.")
    # Wrong settings are said once, before anything is started.
    prepare(arguments, World(size=workers))
    with Show() as show:
        run_workers(
            work,
            workers,
            arguments,
            on_event=lambda rank, event: show(event) if rank == 0 else None,
            silence=SILENCE,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """`train.py`: one rank, as the launcher says."""
    parser = argparse.ArgumentParser(
        prog="train.py", description="Train with gradient compression, as config files say."
    )
    add_arguments(parser)
    parsed = parser.parse_args(arguments)
    try:
        one_rank(parsed)
    except GraceError as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("train.py: interrupted; the same command goes on where it stopped", file=sys.stderr)
        return 130
    return 0
