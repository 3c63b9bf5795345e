"""Build Horovod for the frameworks that are installed, keep the wheel, and install it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ...errors import ConfigError
from ..parser import whole

SUMMARY = "build and install Horovod for the frameworks present"
EXAMPLES = ("grace horovod install", "grace horovod check", "grace horovod build --mpi --jobs 2")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        metavar="action",
        choices=("install", "build", "check"),
        help="install: build it unless a wheel is cached, and install it; build: make the wheel only; check: see if it works",
    )
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter to build for (default: this one)"
    )
    parser.add_argument("--mpi", action="store_true", help="with MPI beside Gloo, for mpirun")
    parser.add_argument(
        "--jobs",
        type=whole(),
        metavar="N",
        default=os.cpu_count() or 1,
        help="compilers at once (1.5 GB each)",
    )
    parser.add_argument(
        "--source", help="Horovod's source archive or folder, if it is not to come from the index"
    )
    parser.add_argument("--rebuild", action="store_true", help="build even if the wheel is cached")


def run(arguments: argparse.Namespace) -> int:
    from .. import horovod_build as h

    _check_source(arguments.source)

    def say(line: str) -> None:
        print(line, flush=True)

    frameworks = h.probe(arguments.python)
    say(f"{arguments.python}: {frameworks}")
    if arguments.action != "check":
        wheel = None if arguments.rebuild else h.cached(h.wheel_folder(frameworks, arguments.mpi))
        if wheel is not None:
            say(f"already built: {wheel}")
        else:
            say(f"building Horovod {h.VERSION}: about 6 minutes on two free cores")
            wheel = h.build(
                arguments.python,
                frameworks,
                mpi=arguments.mpi,
                jobs=arguments.jobs,
                source=arguments.source,
                report=say,
            )
            say(f"built: {wheel}")
        if arguments.action == "build":
            return 0
        h.install(arguments.python, wheel)
    say(f"works: {h.verify(arguments.python, frameworks)}")
    return 0


def _check_source(source: str | None) -> None:
    """Reject a name that is no file, folder or address, before anything is installed."""
    if source is not None and "://" not in source and not (source.strip() and Path(source).exists()):
        raise ConfigError(
            f"--source {source!r} is no file or folder; give Horovod's source archive, or leave --source out to download it."
        )
