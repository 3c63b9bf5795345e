"""Checks of settings that methods and memories share: a value of a wrong kind is refused as a wrong value is."""

from __future__ import annotations

import math
from typing import Any

from .errors import ConfigError


def number(label: str, value: Any, why: str) -> float:
    """`value` as a float, if it is a number.

    >>> number("ratio", 1, "a share")
    1.0
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ConfigError(f"{label}={value!r} must be a number: {why}.")
    return float(value)


def flag(label: str, value: Any) -> bool:
    """`value`, if it is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{label}={value!r} must be True or False.")
    return value


def whole(label: str, value: Any, why: str, least: int | None = None) -> int:
    """`value`, if it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise ConfigError(f"{label}={value!r} must be a whole number{bound}: {why}.")
    return value
