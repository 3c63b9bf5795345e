"""Validation of settings: compressors and memories check their constructor arguments here.

An error gives the setting, its value, what is allowed, and why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from .errors import ConfigError

T = TypeVar("T")


def number(
    label: str,
    value: Any,
    why: str,
    *,
    above: float | None = None,
    least: float = -math.inf,
    below: float = math.inf,
    most: float | None = None,
) -> float:
    """Return `value` as a float if it is a number within the bounds; `above` and `below` are exclusive.

    >>> number("ratio", 1, "the share that is sent", above=0, most=1)
    1.0
    >>> number("ratio", 0, "the share that is sent", above=0, most=1)
    Traceback (most recent call last):
    grace_dl.errors.ConfigError: ratio=0 must be a number in (0, 1]: the share that is sent.
    """
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    good = good and (value >= least if above is None else value > above)
    if not (good and (value < below if most is None else value <= most)):
        low = f"[{least:g}" if above is None else f"({above:g}"
        high = f"{below:g})" if most is None else f"{most:g}]"
        raise ConfigError(f"{label}={value!r} must be a number in {low}, {high}: {why}.")
    return float(value)


def whole(label: str, value: Any, why: str, *, least: int | None = None, most: int | None = None) -> int:
    """Return `value` if it is an integer within the bounds.

    >>> whole("rank", 4, "columns of a factor", least=1)
    4
    """
    good = isinstance(value, int) and not isinstance(value, bool)
    if not (good and (least is None or value >= least) and (most is None or value <= most)):
        at_least = "" if least is None else f" of at least {least}"
        bounds = at_least if most is None else f" from {least} to {most}"
        raise ConfigError(f"{label}={value!r} must be a whole number{bounds}: {why}.")
    return int(value)


def passes(value: Any, label: str = "backward_passes_per_step") -> int:
    """Return `value` if it is a number of backward passes per exchange.

    >>> passes(2)
    2
    """
    return whole(label, value, "passes whose gradients are added before each exchange", least=1)


def flag(label: str, value: Any) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{label}={value!r} must be True or False.")
    return value


def choice(label: str, value: Any, options: Sequence[T], why: str) -> T:
    """Return `value` if it is one of `options`.

    >>> choice("norm", "l2", ("l2", "max"), "the scale of a bucket")
    'l2'
    """
    for option in options:
        if type(value) is not bool and value == option:
            return option
    raise ConfigError(f"{label}={value!r} must be one of {', '.join(map(repr, options))}: {why}.")
