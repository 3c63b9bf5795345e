"""Measure on this machine: methods in memory copies, training steps beside plain DDP, links of any speed."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...options import add_out, output_file
from ...parser import Parser
from ...user_namespace import run_with_links
from . import accuracy, kernels, link, step, traffic

SUMMARY = "measure compression on this machine"
EXAMPLES = (
    "grace bench step --quick",
    "grace bench link --rate 100mbit,1gbit --methods topk:0.01 powersgd:rank=4",
    "grace bench accuracy --task mnist --seeds 1 --methods topk:0.01",
)
BENCHMARKS = {"kernels": kernels, "step": step, "link": link, "traffic": traffic, "accuracy": accuracy}
FOLDER = Path("runs/bench")


def add_arguments(parser: Parser) -> None:
    parts = parser.add_subparsers(dest="what", metavar="benchmark", required=True)
    for name, module in BENCHMARKS.items():
        part = parts.add_parser(name, help=module.SUMMARY, description=module.__doc__)
        module.add_arguments(part)
        add_out(part, FOLDER / f"{name}.json")
        part.add_argument(
            "--fresh", action="store_true", help="discard earlier results and measure everything"
        )
        part.add_argument(
            "--quick",
            action="store_true",
            help="smaller defaults, to see that it works; given options still apply",
        )
        part.add_examples(module.EXAMPLES)


def run(arguments: argparse.Namespace) -> int:
    arguments.out = output_file(arguments.out, FOLDER / f"{arguments.what}.json")
    benchmark = BENCHMARKS[arguments.what]
    if benchmark.uses_links(arguments):
        return run_with_links(lambda: benchmark.run(arguments), arguments.words)
    benchmark.run(arguments)
    return 0
