"""Count the bytes that leave each rank on the network interface of its own host, beside those reported. Needs Linux, but
not root."""

from __future__ import annotations

import argparse

from ....errors import ConfigError
from ...options import add_methods, add_per_host, add_workers, note_defaults
from ...parser import whole

SUMMARY = "bytes that leave a rank, read from its network interface"
EXAMPLES = (
    "grace bench traffic --quick",
    "grace bench traffic --workers 2,4 --methods topk:0.01 int8",
    "grace bench traffic --workers 4 --per-host 2 --methods int4 'hierarchical(outer=int4)'",
    "grace bench traffic --model resnet50 --methods int8 int4",
)
NUMEL = 4_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_methods(parser, "methods, such as topk:0.01 int8:communicator=allgather (default: each communicator)")
    add_workers(parser, "2,4,8", several=True)
    add_per_host(parser)
    parser.add_argument(
        "--numel",
        type=whole(),
        metavar="N",
        help="elements exchanged (default 4 million; with --quick 100,000)",
    )
    parser.add_argument(
        "--model",
        choices=("resnet50", "gpt2"),
        help="exchange the gradients of this model, in DDP's buckets, instead of one tensor",
    )


def uses_links(arguments: argparse.Namespace) -> bool:
    return True


def run(arguments: argparse.Namespace) -> None:
    from ....bench.selection import select
    from ....bench.traffic import METHODS, measure_traffic

    if arguments.model and arguments.numel:
        raise ConfigError(
            f"--model {arguments.model} has its own sizes, so that --numel {arguments.numel} has no meaning; give one of them."
        )
    methods = select(arguments.methods, default=METHODS)
    note_defaults(arguments.methods)
    measure_traffic(
        methods,
        arguments.out,
        workers=arguments.workers,
        numel=arguments.numel or (100_000 if arguments.quick else NUMEL),
        per_host=arguments.per_host,
        model=arguments.model,
        fresh=arguments.fresh,
    )
