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
from ..output_files import explain
from . import commands
from .parser import Parser

EXAMPLES = (
    "grace demo",
    "grace methods topk",
    "grace bench link --rate 100mbit,1gbit --methods topk:0.01 int4",
)


def subcommands() -> dict[str, ModuleType]:
    """Every module of the folder `commands`: `SUMMARY`, `EXAMPLES`, `add_arguments(parser)` and `run(arguments)`, which
    returns the exit code."""
    return {
        info.name: importlib.import_module(f"{commands.__name__}.{info.name}")
        for info in pkgutil.iter_modules(commands.__path__)
    }


def build_parser() -> Parser:
    """The whole command line."""
    parser = Parser(
        prog="grace",
        description="Gradient compression for distributed deep learning. `grace COMMAND --help` explains a command.",
        add_help=False,  # the usage line shows both options; the help is to fit a screen
    )
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    version = f"grace {__version__}"
    parser.add_argument("--version", action="version", version=version, help=argparse.SUPPRESS)
    parser.usage = "grace [--help] [--version] command ..."
    parts = parser.add_subparsers(
        title="commands", dest="command", metavar="command", required=True, prog=parser.prog
    )
    for name, module in subcommands().items():
        part = parts.add_parser(name, help=module.SUMMARY, description=module.__doc__)
        module.add_arguments(part)
        part.add_examples(module.EXAMPLES)
        part.set_defaults(run=module.run)
    parser.add_examples(EXAMPLES)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; an error that a user can mend becomes one line on stderr and exit code 2, not a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = build_parser()
    parser.reject_unknown_option(words)
    parsed = parser.parse_args(words)
    parsed.words = words
    name = parsed.parser.prog
    try:
        return int(parsed.run(parsed))
    except GraceError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader closed the pipe
        sys.stderr.close()
        return 0
    except OSError as error:
        print(f"{name}: {explain(error)}", file=sys.stderr)
        return 2
