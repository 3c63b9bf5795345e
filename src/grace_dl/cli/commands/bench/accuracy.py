"""Train a task with each method, for several seeds and at given link rates, beside ddp and bf16: final accuracy, and the time
to reach one. Finished runs are not repeated, and an interrupted run resumes from its last checkpoint."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ....train import overrides
from ....train.schema import LARGEST_SEED
from ...options import add_methods, add_rates, add_task, add_workers, note_defaults
from ...parser import Listed, path, positive, whole

if TYPE_CHECKING:
    from ....bench.accuracy import StudyPlan

SUMMARY = "final accuracy and time to reach one, over seeds and link rates"
EXAMPLES = (
    "grace bench accuracy --quick",
    "grace bench accuracy --task mnist --rate 100mbit,1gbit --seeds 1,2 --methods topk:0.01",
    "grace bench accuracy --task lm --workers 4 --methods topk:0.01 diloco sparseloco",
    "grace bench accuracy --from-runs runs/cifar.small.np2",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_task(
        parser,
        "cifar, mnist, lm (characters), synthetic, or config files as for `grace train` (default cifar)",
    )
    add_rates(parser, "loopback")
    add_workers(parser, several=True)
    add_methods(
        parser,
        "methods beside ddp (plain float32) and bf16, such as topk:0.01 powersgd:rank=4, and local steps, such as diloco sparseloco:100 "
        "or 'local(int4; every=30)'; exactly these if ddp is among them",
    )
    parser.add_argument(
        "--seeds",
        action=Listed,
        item=whole(0, LARGEST_SEED),
        metavar="N",
        help="seeds of the runs (default 1,2,3)",
    )
    parser.add_argument(
        "--epochs", type=whole(), metavar="N", help="epochs of a run (default: those of the config file)"
    )
    parser.add_argument(
        "--timed-epochs",
        type=positive,
        metavar="N",
        help="train in full at the first rate only; at the others time N epochs, such as 2 or 0.5, as the training is the same",
    )
    parser.add_argument(
        "--target",
        type=positive,
        metavar="VALUE",
        help="accuracy to reach, in percent (default: one point below the end of the worst ddp run), or for tasks judged by "
        "configs.train.metric='loss/test', such as lm, the loss (default: one percent above it)",
    )
    parser.add_argument(
        "--from-runs",
        nargs="+",
        type=path,
        metavar="FOLDER",
        help="take the curves of runs that `grace train` has made, instead of training",
    )
    parser.epilog = (
        "Settings of the task may be given as --configs.train.batch_size 128, as for `grace train`."
    )
    overrides.accept(parser)


def uses_links(arguments: argparse.Namespace) -> bool:
    from ....bench.virtual_hosts import with_links

    return not arguments.from_runs and bool(with_links(arguments.rate))


def run(arguments: argparse.Namespace) -> None:
    from ....bench import accuracy

    if arguments.from_runs:
        results = accuracy.import_runs(
            arguments.from_runs, arguments.out, fresh=arguments.fresh, target=arguments.target
        )
    else:
        results = accuracy.make_study(_plan(arguments), arguments.out, fresh=arguments.fresh)
    accuracy.show_study(results, arguments.target)


def _plan(arguments: argparse.Namespace) -> StudyPlan:
    from ....bench import accuracy
    from ....bench.selection import select

    quick = arguments.quick
    methods = ["int8", "topk:0.01"] if quick else accuracy.METHODS
    chosen = select(arguments.methods, default=methods, beside=accuracy.BESIDE, rules=True)
    note_defaults(arguments.methods)
    return accuracy.StudyPlan(
        methods=chosen,
        task=arguments.task or (["synthetic"] if quick else ["cifar"]),
        rates=arguments.rate,
        seeds=arguments.seeds or ([1] if quick else [1, 2, 3]),
        workers=arguments.workers,
        epochs=2 if quick and arguments.epochs is None else arguments.epochs,
        timed_epochs=arguments.timed_epochs,
        target=arguments.target,
        overrides=arguments.overrides,
    )
