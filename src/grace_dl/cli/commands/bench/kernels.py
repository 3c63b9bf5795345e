"""Time compressing (with error feedback) and decoding of each method, as multiples of copying the tensor."""

from __future__ import annotations

import argparse

from ...options import add_methods

SUMMARY = "compress and decode, in copies of the same tensor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", nargs="+", type=int, metavar="N", help="elements (default: 1e3 to 2.5e7)")
    add_methods(parser, "methods, such as topk:0.01 int8 (default: all)")
    parser.add_argument("--backends", nargs="+", metavar="NAME", help="reference, native (default: both)")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="thread counts (default 1 2)")


def run(arguments: argparse.Namespace) -> None:
    from ....bench.kernels import BACKENDS, SIZES, default_methods, measure_kernels
    from ....bench.selection import select

    measure_kernels(
        select(arguments.methods, default=default_methods()),
        arguments.out,
        sizes=arguments.sizes or ((1_000, 100_000) if arguments.quick else SIZES),
        backends=arguments.backends or BACKENDS,
        threads=arguments.threads,
        fresh=arguments.fresh,
    )
