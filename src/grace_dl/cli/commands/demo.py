"""Train a small network on real images with two local workers: plain, then with several methods."""

from __future__ import annotations

import argparse

from ..options import add_methods

SUMMARY = "train on two local workers, plain and compressed, and compare"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", default="fashion-mnist", help="fashion-mnist, mnist, cifar10 or digits")
    parser.add_argument("--epochs", type=float, default=1.0, help="epochs per method (default 1)")
    parser.add_argument("--batch", type=int, default=64, help="images per worker and step (default 64)")
    parser.add_argument("--workers", type=int, default=2, help="local workers (default 2)")
    add_methods(parser, "methods beside ddp, such as topk:0.01 dgc:0.005 (default: one of each family)")
    parser.add_argument(
        "--out", default="runs/demo", help="folder for the plot and the results (default runs/demo)"
    )


def run(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from ...console import output
    from ...demo.plan import Settings, runs
    from ...demo.run import demo
    from ...errors import ConfigError

    for name, least in (("epochs", 0), ("batch", 1), ("workers", 1)):
        value = getattr(arguments, name)
        if value < least or value == 0:
            raise ConfigError(f"--{name} {value} is too small; give a positive number.")
    settings = Settings(arguments.data, arguments.epochs, arguments.batch, arguments.workers)
    demo(settings, runs(arguments.methods), Path(arguments.out), output())
    return 0
