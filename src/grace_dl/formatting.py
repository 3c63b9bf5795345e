"""Human-readable numbers, sizes, rates and times, and text for HTML."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping
from typing import Any

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
