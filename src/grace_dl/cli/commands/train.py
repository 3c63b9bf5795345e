"""Train as config files say, on local workers that this command starts, or under a launcher."""

from __future__ import annotations

import argparse

from ...train import main as training

SUMMARY = "train from config files, on one or several local workers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-np", "--num-proc", type=int, metavar="N", help="local workers to start (default 1)")
    training.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    config = training.config_of(arguments)
    if arguments.num_proc is None:
        training.run_here(config)
    else:
        training.run_local_workers(config, arguments.num_proc)
    return 0
