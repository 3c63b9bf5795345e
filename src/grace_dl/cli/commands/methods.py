"""List the compression methods, or explain one."""

from __future__ import annotations

import argparse

SUMMARY = "list the compression methods, or explain one"
EXAMPLES = ("grace methods", "grace methods topk:0.001", "grace methods --json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="METHOD", help="explain this method only, such as topk or topk:0.001"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs")
    form.add_argument("--markdown", action="store_true", help="for documents; generates docs/methods.md")


def run(arguments: argparse.Namespace) -> int:
    from ... import catalog
    from ...algebra.named import Named
    from ...algebra.text import parse
    from .. import method_listing

    method = None if arguments.name is None else parse(arguments.name)
    parts = () if method is None else method.parts()
    named = list({part.name: part for part in parts if isinstance(part, Named)}.values())
    infos = [method.info for method in named] or list(catalog.methods().values())
    if arguments.json:
        print(method_listing.as_json(infos))
    elif arguments.markdown:
        print(method_listing.as_markdown(infos), end="")
    elif method is not None:
        if not isinstance(method, Named):
            method_listing.explain_composition(method)
        for part in named:
            method_listing.explain(part)
    else:
        method_listing.show(infos)
    return 0
