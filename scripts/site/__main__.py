"""Build the site: `python -m scripts.site OUT`. Warnings are errors."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import build_main

from .staging import stage

ROOT = Path(__file__).resolve().parent.parent.parent


def main() -> int:
    """Build the site into a folder, and say where it begins."""
    parser = argparse.ArgumentParser(prog="python -m scripts.site", description=__doc__)
    parser.add_argument(
        "out", nargs="?", type=Path, default=ROOT / "build" / "site", help="folder of the site"
    )
    parser.add_argument("--keep-going", action="store_true", help="report all warnings, not only the first")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        stage(ROOT, source)
        command = ["-b", "html", "-c", str(Path(__file__).parent), "-d", str(Path(folder) / "doctrees")]
        strict = [
            "--fail-on-warning",
            *(["--keep-going"] if arguments.keep_going else ["--exception-on-warning"]),
        ]
        code = build_main(
            [*command, *strict, "--fresh-env", "--quiet", "--jobs", "auto", str(source), str(arguments.out)]
        )
    if code == 0:
        print(f"{arguments.out / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
