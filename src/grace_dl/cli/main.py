"""Entry point of the `grace` command."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType

from .. import __version__
from ..errors import GraceError
from . import commands


def subcommands() -> dict[str, ModuleType]:
    """Every module of the folder `commands`: `SUMMARY`, `add_arguments(parser)` and `run(arguments) -> exit code`."""
    return {
        info.name: importlib.import_module(f"{commands.__name__}.{info.name}")
        for info in pkgutil.iter_modules(commands.__path__)
    }


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="grace", description="Gradient compression for distributed deep learning."
    )
    parser.add_argument("--version", action="version", version=f"grace {__version__}")
    parts = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, module in subcommands().items():
        part = parts.add_parser(name, help=module.SUMMARY, description=module.__doc__)
        module.add_arguments(part)
        part.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a `GraceError` becomes a message on stderr and exit code 2, not a traceback."""
    parsed = build_parser().parse_args(arguments)
    try:
        return int(parsed.run(parsed))
    except GraceError as error:
        print(f"grace {parsed.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"grace {parsed.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader closed the pipe
        sys.stderr.close()
        return 0
