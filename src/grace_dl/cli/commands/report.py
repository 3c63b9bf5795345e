"""Write one HTML page with tables and plots from the result files of `grace bench`; it needs no network to be read."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "make an HTML page from results of benchmarks"

USUAL = Path("runs/bench")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE.json",
        help=f"result files of any benchmarks (default: all in {USUAL})",
    )
    parser.add_argument("--out", type=Path, help="the page (default: report.html beside the first file)")


def run(arguments: argparse.Namespace) -> int:
    from ...errors import ConfigError
    from ...report.build import write

    files = arguments.files or sorted(USUAL.glob("*.json"))
    if not files:
        raise ConfigError(
            f"there are no result files in {USUAL}; name some, or make one with `grace bench step --quick`."
        )
    out = write(files, arguments.out or files[0].with_name("report.html"))
    print(out.resolve())
    return 0
