"""List the compression methods, or explain one."""

from __future__ import annotations

import argparse

SUMMARY = "list the compression methods, or explain one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="explain this method only")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs")
    form.add_argument("--markdown", action="store_true", help="for documents; makes docs/methods.md")


def run(arguments: argparse.Namespace) -> int:
    from ...registry import method, methods
    from .. import catalogue

    chosen = [method(arguments.name)] if arguments.name else list(methods().values())
    if arguments.json:
        print(catalogue.as_json(chosen))
    elif arguments.markdown:
        print(catalogue.as_markdown(chosen), end="")
    elif arguments.name:
        catalogue.explain(chosen[0])
    else:
        catalogue.show(chosen)
    return 0
