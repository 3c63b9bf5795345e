"""The options of `grace bench accuracy`, apart from what it runs, so that reading a command line loads no framework."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..train import overrides


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those that other benchmarks do not have."""
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
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="NAME",
        help="methods beside float32 and bf16, with settings, such as topk:compress_ratio=0.01",
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
        help="accuracy to reach (default: one point below the end of the worst float32 run)",
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
