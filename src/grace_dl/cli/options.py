"""Options shared by several commands, and parsing of lists."""

from __future__ import annotations

import argparse

from ..errors import ConfigError


def add_methods(parser: argparse.ArgumentParser, explanation: str) -> None:
    """`--methods`, the same in all commands: `topk:0.01 powersgd:rank=4`, or with commas."""
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help=explanation)


def whole_numbers(option: str, text: str, least: int = 1) -> list[int]:
    """Integers separated by commas, without duplicates.

    >>> whole_numbers("--workers", "2,4,2")
    [2, 4]
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{option} {text!r} must be whole numbers separated by commas, such as 1,2,3."
        ) from None
    if min(found) < least:
        raise ConfigError(f"{option} {text!r}: each number must be {least} or more.")
    return list(dict.fromkeys(found))


def names(text: str) -> list[str]:
    """Names separated by commas, without duplicates.

    >>> names("100mbit,1gbit")
    ['100mbit', '1gbit']
    """
    return list(dict.fromkeys(part for part in text.replace(",", " ").split()))
