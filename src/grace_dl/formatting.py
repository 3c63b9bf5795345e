"""Human-readable numbers, sizes, rates and times, and text for HTML."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping
from typing import Any

from .errors import ConfigError

UNLIMITED = 1e14
"""Bits per second from which a link counts as unlimited: result files write 1e15 for infinity."""


def escape(text: object) -> str:
    """Text escaped for HTML, including attributes."""
    return html.escape(str(text), quote=True)


def number(value: float, digits: int = 3) -> str:
    """Round to significant digits, without an exponent for numbers of ordinary size.

    >>> [number(v) for v in (0.01234, 1.5, 61.62, 1234.5, 0)]
    ['0.0123', '1.50', '61.6', '1,234', '0']
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(8, max(0, places))}f}"


def milliseconds(seconds: float) -> str:
    """
    >>> milliseconds(0.0123)
    '12.3 ms'
    """
    return f"{number(1e3 * seconds)} ms"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours.

    >>> duration(4.25), duration(45), duration(600), duration(9000)
    ('4.2 s', '45 s', '10 min', '2 h 30 min')
    """
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.{1 if seconds < 10 else 0}f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(count: float) -> str:
    """Bytes.

    >>> size(16_064_475), size(512)
    ('16.1 MB', '512 B')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{number(count)} {unit}"
        count /= 1000
    return f"{number(count)} TB"


def rate(bits: float) -> str:
    """A link rate.

    >>> rate(1e8), rate(2.5e9), rate(1e15)
    ('100 Mbit/s', '2.5 Gbit/s', 'unlimited')
    """
    if bits >= UNLIMITED:
        return "unlimited"
    bits = float(f"{bits:.3g}")
    for unit, scale in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits >= scale:
            return (
                f"{float(f'{bits / scale:.2g}'):g} {unit}"
                if bits / scale < 10
                else f"{bits / scale:,.0f} {unit}"
            )
    return f"{bits / 1e3:.3g} kbit/s"


def parse_rate(text: str) -> float:
    """Bits per second of a link rate such as `100mbit`; infinity for `unlimited`.

    >>> parse_rate("100mbit"), parse_rate("2.5gbit"), parse_rate("unlimited")
    (100000000.0, 2500000000.0, inf)
    """
    if text == "unlimited":
        return math.inf
    found = _RATE.fullmatch(text)
    if not found or float(found[1]) == 0:
        raise ConfigError(f"rate {text!r} is no link rate; write 100mbit, 1gbit, 10gbit or unlimited.")
    return float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]]


_RATE = re.compile(r"(\d+(?:\.\d+)?)(k|m|g)bit")


def link(record: Mapping[str, Any]) -> str:
    """How a record's workers are connected."""
    return str(record["rate"]) if record["bits"] >= UNLIMITED else rate(record["bits"])


def percent(share: float, sign: bool = False) -> str:
    """
    >>> percent(0.7312), percent(-0.004, sign=True)
    ('73.12', '−0.40')
    """
    return f"{100 * share:{'+' if sign else ''}.2f}".replace("-", "−")


def slug(text: str) -> str:
    """A name for anchors.

    >>> slug("link: transformer, 2 workers")
    'link-transformer-2-workers'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
