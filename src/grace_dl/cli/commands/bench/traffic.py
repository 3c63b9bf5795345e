"""Count the bytes that leave each rank on the network interface of its own host, beside those reported (needs root, as
`link` does)."""

from __future__ import annotations

import argparse

from ...options import add_methods, whole_numbers

SUMMARY = "bytes that leave a rank, read from its network interface"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_methods(parser, "methods, such as topk:0.01 int8:communicator=allgather (default: each communicator)")
    parser.add_argument("--workers", default="2,4,8", help="numbers of hosts, by commas (default 2,4,8)")
    parser.add_argument("--numel", type=int, default=4_000_000, help="elements exchanged (default 4 million)")


def run(arguments: argparse.Namespace) -> None:
    from ....bench.selection import select
    from ....bench.traffic import METHODS, measure_traffic

    measure_traffic(
        select(arguments.methods, default=METHODS),
        arguments.out,
        workers=whole_numbers("--workers", arguments.workers),
        numel=100_000 if arguments.quick else arguments.numel,
        fresh=arguments.fresh,
    )
