"""Train a network on real images with two workers, plain and with several methods: on loopback, and between two hosts joined
by a 100 Mbit/s and a 1 Gbit/s link, made on this machine where the kernel allows it. It ends with what was faster, by how
much, and at which accuracy. Takes a few minutes."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..options import (
    add_batch_size,
    add_methods,
    add_out,
    add_rates,
    add_task,
    add_workers,
    note_defaults,
    output_file,
)
from ..parser import positive
from ..user_namespace import run_with_links

SUMMARY = "train plain and compressed on slow and fast links, and compare"
EXAMPLES = (
    "grace demo",
    "grace demo --quick",
    "grace demo --task mnist --rate loopback,10mbit --methods topk:0.001 powersgd:rank=2",
)
USUAL = Path("runs/demo/results.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_task(parser, "fashion-mnist (default), mnist, cifar10 or digits")
    parser.add_argument("--epochs", type=positive, metavar="N", help="epochs per method (default 1)")
    add_batch_size(parser, "64")
    add_workers(parser, several=False)
    add_rates(parser, "loopback,100mbit,1gbit")
    parser.add_argument(
        "--seconds",
        type=positive,
        metavar="S",
        help="training time of each method on each network after the first (default 15)",
    )
    add_methods(parser, "methods beside ddp, such as topk:0.01 dgc:0.005 (default int4 powersgd:4 topk:0.01)")
    add_out(parser, USUAL)
    parser.add_argument("--quick", action="store_true", help="smaller defaults, to see that it works")


def run(arguments: argparse.Namespace) -> int:
    from ...bench.virtual_hosts import with_links

    arguments.out = output_file(arguments.out, USUAL)
    if with_links(arguments.rate):
        return run_with_links(lambda: _demo(arguments), arguments.words)
    _demo(arguments)
    return 0


def _demo(arguments: argparse.Namespace) -> None:
    from ...console import output
    from ...demonstration.plan import Settings, runs
    from ...demonstration.run import demo
    from ...errors import ConfigError

    task = arguments.task or ["fashion-mnist"]
    if len(task) > 1:
        raise ConfigError(f"--task {' '.join(task)}: the demo takes one task; name one of them.")
    chosen = runs(arguments.methods)
    note_defaults(arguments.methods)
    settings = Settings(
        task=task[0],
        epochs=arguments.epochs or (0.1 if arguments.quick else 1.0),
        batch_size=arguments.batch_size or 64,
        workers=arguments.workers,
        rates=arguments.rate,
        seconds=arguments.seconds or (2.0 if arguments.quick else 15.0),
    )
    demo(settings, chosen, arguments.out, output())
