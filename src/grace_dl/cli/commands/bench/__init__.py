"""Measure on this machine: methods in memory copies, training steps beside plain DDP, links of any speed."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import accuracy, kernels, link, step, traffic

SUMMARY = "measure compression on this machine"
BENCHMARKS = {"kernels": kernels, "step": step, "link": link, "traffic": traffic, "accuracy": accuracy}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="what", metavar="what", required=True)
    for name, module in BENCHMARKS.items():
        part = parts.add_parser(name, help=module.SUMMARY, description=module.__doc__)
        module.add_arguments(part)
        part.add_argument("--out", type=Path, help=f"result file (default runs/bench/{name}.json)")
        part.add_argument(
            "--fresh", action="store_true", help="discard earlier results and measure everything"
        )
        part.add_argument("--quick", action="store_true", help="small and short, to see that it works")


def run(arguments: argparse.Namespace) -> int:
    arguments.out = arguments.out or Path("runs/bench") / f"{arguments.what}.json"
    BENCHMARKS[arguments.what].run(arguments)
    return 0
