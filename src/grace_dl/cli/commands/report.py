"""Write one HTML page with tables and plots from the result files of `grace bench`; it needs no network to be read."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..options import add_out, output_file
from ..parser import path

SUMMARY = "make an HTML page from results of benchmarks"
EXAMPLES = ("grace report", "grace report runs/bench/link.json --out page.html")

USUAL = Path("runs/bench")
PAGE = "report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        type=path,
        metavar="FILE.json",
        help=f"result files of any benchmarks (default: all in {USUAL})",
    )
    add_out(parser, USUAL / PAGE)


def run(arguments: argparse.Namespace) -> int:
    from ...errors import ConfigError
    from ...report.build import write

    files = arguments.files or sorted(USUAL.glob("*.json"))
    if not files:
        raise ConfigError(
            f"there are no result files in {USUAL}; name some, or make one with `grace bench step --quick`."
        )
    out = write(files, output_file(arguments.out, files[0].parent / PAGE))
    print(out.resolve())
    return 0
