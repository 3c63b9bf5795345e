"""Settings on the command line: `--configs.train.num_epochs 500`. Values are parsed as literals, never run."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError
from .config import Config, Field

PREFIX = "--configs."


def split(arguments: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The other arguments, and the overrides as pairs of path and text.

    >>> split(["--suffix", ".e5", "--configs.train.num_epochs", "5", "--configs.seed=1"])
    (['--suffix', '.e5'], [('train.num_epochs', '5'), ('seed', '1')])
    """
    rest: list[str] = []
    found: list[tuple[str, str]] = []
    queue = list(arguments)
    while queue:
        word = queue.pop(0)
        if not word.startswith(PREFIX):
            rest.append(word)
            continue
        path, equals, value = word.removeprefix(PREFIX).partition("=")
        if not equals:
            if not queue or queue[0].startswith("--"):
                raise ConfigError(f"{word} needs a value, as in {word} 500.")
            value = queue.pop(0)
        found.append((path, value))
    return rest, found


def accept(parser: argparse.ArgumentParser) -> None:
    """Let a parser take overrides anywhere on its command line, as `overrides` of the result."""
    plain = parser.parse_known_args

    def parse_known_args(args: Any = None, namespace: Any = None) -> Any:
        import sys

        try:
            rest, found = split(sys.argv[1:] if args is None else args)
        except ConfigError as error:
            parser.error(str(error))
        parsed, unknown = plain(rest, namespace)
        parsed.overrides = found
        return parsed, unknown

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def apply(tree: Config, overrides: Sequence[tuple[str, str]]) -> None:
    """Set each override in the tree; unknown names and values that do not fit are refused."""
    for path, written in overrides:
        *folders, name = path.split(".")
        group = tree
        for folder in folders:
            inner = group.get(folder)
            if not isinstance(inner, Config):
                _refuse(group, folder, path)
            assert isinstance(inner, Config)
            group = inner
        known = group.names()
        if known is not None and name not in known:
            raise group._unknown(name)
        if name in group and isinstance(group[name], Config):
            keys = group[name].names() or []
            raise ConfigError(
                f"configs.{path} is a group of settings and cannot become {written!r}; set one of its settings "
                f"({', '.join(keys)}), or name a config file."
            )
        group[name] = _value(path, written, group.get(name), group.__dict__["_fields"].get(name))


def _refuse(group: Config, folder: str, path: str) -> None:
    known = group.names()
    if known is not None and folder not in known:
        raise group._unknown(folder)
    raise ConfigError(
        f"configs.{path} cannot be set: {folder} is {group.get(folder)!r}, not a group of settings; name a config file "
        "that sets it."
    )


def _value(path: str, written: str, present: Any, field: Field | None) -> Any:
    """What a text on the command line means: a literal, or else itself where text is wanted."""
    try:
        value = ast.literal_eval(written)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = written
    if field is not None:
        if not field.fits(value) and field.fits(written):
            value = written  # text that happens to look like a number
        return value
    if isinstance(value, str) and present is not None and not isinstance(present, str):
        raise ConfigError(
            f"configs.{path}={written!r} does not fit: it is {present!r} at present; give a "
            f"{'True or False' if isinstance(present, bool) else type(present).__name__}, written as in Python."
        )
    if isinstance(present, bool) != isinstance(value, bool) and isinstance(present, (bool, int, float)):
        raise ConfigError(f"configs.{path}={written!r} does not fit: it is {present!r} at present.")
    return value
