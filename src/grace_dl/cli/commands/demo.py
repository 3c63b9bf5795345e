"""Train a small network on real images with two local workers: plain, then with several methods."""

from __future__ import annotations

import argparse

SUMMARY = "train on two local workers, plain and compressed, and compare"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", default="fashion-mnist", help="fashion-mnist, mnist, cifar10 or digits")
    parser.add_argument("--epochs", type=float, default=1.0, help="epochs per method (default 1)")
    parser.add_argument("--batch", type=int, default=64, help="images per worker and step (default 64)")
    parser.add_argument("--workers", type=int, default=2, help="local workers (default 2)")
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="NAME",
        help="compare these methods, with their defaults, instead of the prepared choice",
    )
    parser.add_argument("--out", default="runs/demo", help="folder for the picture and the figures")


def run(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from ...console import output
    from ...demo.plan import RUNS, Run, Settings
    from ...demo.run import demo
    from ...errors import ConfigError
    from ...registry import method

    for name, least in (("epochs", 0), ("batch", 1), ("workers", 1)):
        value = getattr(arguments, name)
        if value < least or value == 0:
            raise ConfigError(f"--{name} {value} is too small; give a positive number.")
    runs = RUNS
    if arguments.methods:
        runs = (RUNS[0], *(Run(method(name).name, {"compressor": name}) for name in arguments.methods))
    settings = Settings(arguments.data, arguments.epochs, arguments.batch, arguments.workers)
    demo(settings, runs, Path(arguments.out), output())
    return 0
