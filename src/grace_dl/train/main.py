"""The command line of training, for `train.py` and for `grace train`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ..errors import ConfigError, GraceError
from ..output_files import explain
from ..workers import Emit, run_workers
from . import overrides
from .config import RUNS, TrainConfig
from .events import Event
from .trainer import Trainer, TrainResult
from .world import World, current, find

SILENCE = 1800.0
"""Seconds without any event after which local workers are terminated; downloads may take long."""


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
        "Any setting may be given as --configs.train.num_epochs 500; values are written as in Python. Runs are stored in "
        f"{RUNS}/, named after their config files. The same command resumes an interrupted run, also with another number of workers."
    )
    overrides.accept(parser)


def config_of(arguments: argparse.Namespace) -> TrainConfig:
    """The config that a command line describes."""
    return TrainConfig.from_files(
        arguments.configs,
        overrides=arguments.overrides,
        suffix=arguments.suffix,
        device=arguments.devices,
        evaluate_only=arguments.evaluate,
    )


def run_here(config: TrainConfig) -> TrainResult:
    """Run this process's rank, and show its progress if it is the first."""
    from .progress import ProgressDisplay

    world = current()
    with ProgressDisplay() as display:
        return Trainer(config, world=world, report=display if world.rank == 0 else None).run()


def run_local_worker(rank: int, size: int, emit: Emit, config: TrainConfig) -> TrainResult:
    """Run one of the local workers that `run_workers` starts; the first reports its events."""
    world = World(rank, size, rank, size, "grace")
    return Trainer(config, world=world, report=emit if rank == 0 else None).run()


def quiet_workers() -> None:
    """Keep local workers from printing that DDP found no unused parameters; `GradientSync` makes it look for another reason."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def run_local_workers(config: TrainConfig, workers: int) -> TrainResult:
    """Start local workers, show their progress, and return the result of the first."""
    from .progress import ProgressDisplay

    if workers < 1:
        raise ConfigError(f"-np {workers} must be 1 or more.")
    if (launcher := find().launcher) != "none":
        raise ConfigError(f"-np {workers} under {launcher}: ranks are started already; leave -np out.")
    quiet_workers()
    with ProgressDisplay() as display:

        def on_event(rank: int, event: Event) -> None:
            display(event)

        results = run_workers(run_local_worker, workers, config, on_event=on_event, silence=SILENCE)
    first: TrainResult = results[0]
    return first


def main(arguments: Sequence[str] | None = None) -> int:
    """`train.py`: runs one rank, as set by the launcher."""
    parser = argparse.ArgumentParser(
        prog="train.py", description="Train with gradient compression, as config files say."
    )
    add_arguments(parser)
    parsed = parser.parse_args(arguments)
    try:
        run_here(config_of(parsed))
    except GraceError as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"train.py: {explain(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("train.py: interrupted; the same command resumes the run", file=sys.stderr)
        return 130
    return 0
