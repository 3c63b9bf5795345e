"""Train as config files say, on local workers that this command starts, or under a launcher."""

from __future__ import annotations

import argparse

from ...train import main as training
from ..parser import Listed, whole

SUMMARY = "train from config files, on one or several local workers"
EXAMPLES = (
    "grace train --workers 2 --configs configs/mnist.py",
    "grace train --workers 2 --configs configs/cifar/resnet20.py configs/dgc/wm5.py",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        "-np",
        "--num-proc",
        action=Listed,
        item=whole(),
        single=True,
        metavar="N",
        help="local workers to start (default: this process is the only one, or the launcher's)",
    )
    training.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    config = training.config_of(arguments)
    if arguments.workers is None:
        training.run_here(config)
    else:
        training.run_local_workers(config, arguments.workers)
    return 0
