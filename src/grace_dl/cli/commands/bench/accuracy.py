"""Train a task with each method, for several seeds and at given link rates, beside ddp and bf16: final accuracy, and the time
to reach one. Finished runs are not repeated, and an interrupted run resumes from its last checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ....train import overrides
from ...options import add_methods, names, whole_numbers

if TYPE_CHECKING:
    from ....bench.accuracy import StudyPlan

SUMMARY = "final accuracy and time to reach one, over seeds and link rates"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--task",
        nargs="+",
        metavar="NAME",
        help="cifar, mnist, synthetic, or config files as for `grace train` (default cifar)",
    )
    parser.add_argument(
        "--rate",
        default="loopback",
        help="link rates by commas, such as 100mbit,1gbit,unlimited (needs root); default loopback: no links",
    )
    parser.add_argument("--workers", type=int, default=2, help="workers, one thread each (default 2)")
    add_methods(
        parser,
        "methods beside ddp (plain float32) and bf16, such as topk:0.01 powersgd:rank=4; exactly these if ddp is among them",
    )
    parser.add_argument("--seeds", help="seeds, by commas (default 1,2,3)")
    parser.add_argument("--epochs", type=int, help="epochs of a run (default: those of the config file)")
    parser.add_argument(
        "--timed-epochs",
        type=int,
        metavar="N",
        help="train in full at the first rate only; at the others time N epochs, as the training is the same",
    )
    parser.add_argument(
        "--target",
        type=float,
        metavar="PERCENT",
        help="accuracy to reach (default: one point below the end of the worst ddp run)",
    )
    parser.add_argument(
        "--from-runs",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="take the curves of runs that `grace train` has made, instead of training",
    )
    parser.epilog = (
        "Settings of the task may be given as --configs.train.batch_size 128, as for `grace train`."
    )
    overrides.accept(parser)


def run(arguments: argparse.Namespace) -> None:
    from ....bench import accuracy
    from ....errors import ConfigError

    target = arguments.target
    if target is not None and not 0 < target <= 100:
        raise ConfigError(f"--target {target:g} must be a percentage of correct answers, such as 65.")
    if arguments.from_runs:
        results = accuracy.import_runs(arguments.from_runs, arguments.out, fresh=arguments.fresh)
    else:
        results = accuracy.make_study(_plan(arguments), arguments.out, fresh=arguments.fresh)
    accuracy.show_study(results, None if target is None else target / 100)


def _plan(arguments: argparse.Namespace) -> StudyPlan:
    from ....bench import accuracy
    from ....bench.selection import select

    quick = arguments.quick
    methods = ["int8", "topk:0.01"] if quick else accuracy.METHODS
    return accuracy.StudyPlan(
        methods=select(arguments.methods, default=methods, beside=accuracy.BESIDE),
        task=arguments.task or (["synthetic"] if quick else ["cifar"]),
        rates=names(arguments.rate),
        seeds=whole_numbers("--seeds", arguments.seeds or ("1" if quick else "1,2,3"), least=0),
        workers=arguments.workers,
        epochs=2 if quick and arguments.epochs is None else arguments.epochs,
        timed_epochs=arguments.timed_epochs,
        overrides=arguments.overrides,
    )
