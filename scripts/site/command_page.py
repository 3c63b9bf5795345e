"""The page of the command line: the help of `grace` and of each command."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from grace_dl.cli.main import build_parser


def page() -> str:
    """The page as Markdown."""
    lines = [
        "# Command line",
        "",
        "What `grace --help` and `grace COMMAND --help` print. Methods are given in their [text form](../docs/methods.md).",
    ]
    for parser in _parsers(build_parser()):
        lines += ["", f"## {parser.prog}", "", "```text", parser.format_help().rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for part in dict.fromkeys(action.choices.values()):
                yield from _parsers(part)
