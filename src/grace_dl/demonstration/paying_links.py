"""For which links a method is faster than plain DDP, from the step times that the demo has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..bench.virtual_hosts import LOOPBACK
from ..formatting import parse_rate, rate
from .plan import Result

Gains = Sequence[tuple[float, float]]
"""Bits per second of links, slowest first, and how many seconds of a step a method gains there on plain DDP."""


def limit(gains: Gains) -> float:
    """The rate below which a method gains: interpolated between two links, infinite if it gains on all, 0 if on none.

    A step takes a constant time and one that is proportional to the time of a bit, so the gain is linear in the latter.

    >>> limit([(1e8, 0.09), (1e9, -0.009), (math.inf, -0.02)])
    550000000.0
    >>> limit([(1e8, 0.09), (math.inf, 0.01)]), limit([(1e8, -0.09), (1e9, -0.1)])
    (inf, 0.0)
    """
    below = 0.0
    for place, (bits, gain) in enumerate(gains):
        if gain <= 0:
            if place:
                slower, gained = gains[place - 1]
                share = gained / (gained - gain)
                per_bit = (1 - share) / slower + share / bits
                below = float(f"{1 / per_bit:.2g}") if per_bit else math.inf
            return below
    return math.inf


def paying_links(networks: Mapping[str, Sequence[Result]], methods: Sequence[str], plain: str) -> str | None:
    """A sentence on where each method would have paid; None if no link was tried."""
    bits = {name: math.inf if name == LOOPBACK else parse_rate(name) for name in networks}
    links = sorted(networks, key=lambda name: bits[name])
    if not methods or math.isinf(bits[links[0]]):
        return None
    seconds = {name: {r.method: r.step_seconds for r in networks[name]} for name in links}
    fastest = bits[links[-1]]
    parts = []
    for method in methods:
        found = limit([(bits[name], seconds[name][plain] - seconds[name][method]) for name in links])
        if found == 0:
            where = "on none of these links"
        elif found < math.inf:
            where = f"below about {rate(found)}"
        else:
            where = "on every link" if math.isinf(fastest) else f"up to at least {rate(fastest)}"
        parts.append(f"{method} {where}")
    return f"Links on which compression would have paid here, by these step times: {'; '.join(parts)}."
