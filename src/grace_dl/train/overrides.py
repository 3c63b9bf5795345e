"""Overrides of settings, from Python or from a command line: `--configs.train.num_epochs 500`."""

from __future__ import annotations

import argparse
import ast
import copy
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError
from .tree import Config, Field

PREFIX = "--configs."


class Text(str):
    """A value as written on a command line. It is parsed as a Python literal and never evaluated."""


def split(arguments: Sequence[str]) -> tuple[list[str], dict[str, Text]]:
    """Split arguments into the remaining ones and the overrides by path.

    >>> split(["--suffix", ".e5", "--configs.train.num_epochs", "5", "--configs.seed=1"])
    (['--suffix', '.e5'], {'train.num_epochs': '5', 'seed': '1'})
    """
    rest: list[str] = []
    found: dict[str, Text] = {}
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
        found[path] = Text(value)
    return rest, found


def accept(parser: argparse.ArgumentParser) -> None:
    """Make a parser accept overrides anywhere on its command line; they become `overrides` of the result."""
    plain = parser.parse_known_args

    def parse_known_args(args: Any = None, namespace: Any = None) -> Any:
        try:
            rest, found = split(sys.argv[1:] if args is None else args)
        except ConfigError as error:
            parser.error(str(error))
        parsed, unknown = plain(rest, namespace)
        parsed.overrides = found
        return parsed, unknown

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def apply(tree: Config, overrides: Mapping[str, Any]) -> None:
    """Set values by path; unknown names and invalid values are rejected."""
    for path, given in overrides.items():
        *folders, name = path.split(".")
        group = tree
        for folder in folders:
            group = _inner(group, folder, path)
        known = group.names()
        if known is not None and name not in known:
            raise group.unknown(name)
        field = group._fields.get(name)
        present = group.get(name)
        value = _parsed(given, field) if isinstance(given, Text) else copy.deepcopy(given)
        if field is None:
            _check_kind(path, present, value)
        elif isinstance(present, Config) and not field.fits(value):
            raise _is_group(path, present, value)
        group[name] = value


def _inner(group: Config, folder: str, path: str) -> Config:
    known = group.names()
    if known is not None and folder not in known:
        raise group.unknown(folder)
    inner = group.get(folder)
    if isinstance(inner, Config):
        return inner
    raise ConfigError(
        f"configs.{path} cannot be set: {folder} is {inner!r}, not a group of settings; name a config file that sets it."
    )


def _parsed(written: Text, field: Field | None) -> Any:
    """The value of a text on the command line: a literal, or the text itself."""
    try:
        value = ast.literal_eval(written)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return str(written)
    if field is not None and not field.fits(value) and field.fits(str(written)):
        return str(written)  # text that looks like a number
    return value


def _check_kind(path: str, present: Any, value: Any) -> None:
    """Compare with the value it replaces: the parameters of a target declare no types."""
    if isinstance(present, Config):
        if not isinstance(value, Config) and value is not None:
            raise _is_group(path, present, value)
    elif isinstance(value, str) and present is not None and not isinstance(present, str):
        kind = "True or False" if isinstance(present, bool) else f"a {type(present).__name__}"
        raise ConfigError(
            f"configs.{path}={value!r} does not fit: at present it is {present!r}; give {kind}."
        )
    elif isinstance(present, bool) != isinstance(value, bool) and isinstance(present, (bool, int, float)):
        raise ConfigError(f"configs.{path}={value!r} does not fit: at present it is {present!r}.")


def _is_group(path: str, present: Config, value: Any) -> ConfigError:
    return ConfigError(
        f"configs.{path} is a group of settings and cannot become {value!r}; set one of its settings "
        f"({', '.join(present.names() or [])}), or name a config file."
    )
