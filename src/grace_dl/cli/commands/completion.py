"""Print a script that completes commands, options and methods in bash or zsh."""

from __future__ import annotations

import argparse

from ..parser import Parser

SUMMARY = "print a completion script for bash or zsh"
EXAMPLES = ('eval "$(grace completion bash)"', "grace completion zsh > ~/.zfunc/_grace")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("shell", metavar="shell", choices=("bash", "zsh"), help="bash or zsh")


def run(arguments: argparse.Namespace) -> int:
    from ..completion import script
    from ..main import build_parser

    print(script(arguments.shell, build_parser()), end="")
    return 0
