"""Time compressing (with error feedback) and decoding of each method, as multiples of copying the tensor."""

from __future__ import annotations

import argparse

from ...options import add_methods, add_threads, note_defaults
from ...parser import Listed, whole

SUMMARY = "compress and decode, in copies of the same tensor"
EXAMPLES = (
    "grace bench kernels --quick --methods topk int8",
    "grace bench kernels --sizes 1000000 --threads 1 --backends native",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes", action=Listed, item=whole(), metavar="N", help="elements (default: 1e3 to 2.5e7)"
    )
    add_methods(parser, "methods, such as topk:0.01 int8 (default: all)")
    parser.add_argument("--backends", action=Listed, metavar="NAME", help="reference, native (default: both)")
    add_threads(parser, "1,2", several=True)


def uses_links(arguments: argparse.Namespace) -> bool:
    return False


def run(arguments: argparse.Namespace) -> None:
    from ....bench.kernels import BACKENDS, SIZES, default_methods, measure_kernels
    from ....bench.selection import select

    methods = select(arguments.methods, default=default_methods())
    note_defaults(arguments.methods)
    measure_kernels(
        methods,
        arguments.out,
        sizes=arguments.sizes or ((1_000, 100_000) if arguments.quick else SIZES),
        backends=arguments.backends or BACKENDS,
        threads=arguments.threads,
        fresh=arguments.fresh,
    )
