"""The link rate above which a baseline is faster than a method, between measured rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..formatting import UNLIMITED, rate


@dataclass(frozen=True)
class BreakEven:
    """The rate as text, and in bits per second for sorting: infinity for always, 0 for never."""

    text: str
    bits: float


def break_even(method: Mapping[float, float], baseline: Mapping[float, float]) -> BreakEven | None:
    """From step times by link rate (bits per second); None without a rate at which both were measured.

    Interpolated linearly in the logarithms of rate and ratio of times.

    >>> break_even({1e8: 1.0, 1e10: 1.0}, {1e8: 10.0, 1e10: 0.1}).text
    '1 Gbit/s'
    >>> break_even({1e8: 1.0}, {1e8: 2.0}).text
    'always faster'
    """
    places = sorted(set(method) & set(baseline))
    if not places:
        return None
    gains = [math.log(baseline[place] / method[place]) for place in places]
    if all(gain >= 0 for gain in gains):
        return BreakEven("always faster", math.inf)
    if all(gain < 0 for gain in gains):
        return BreakEven("never faster", 0.0)
    crossings = [i for i in range(len(gains) - 1) if gains[i] >= 0 > gains[i + 1]]
    if not crossings:
        # Slower on slow links, faster on fast ones: rare, but reported as measured.
        first = next(i for i, gain in enumerate(gains) if gain >= 0)
        return BreakEven(f"faster from {rate(places[first])} up", math.inf)
    i = crossings[-1]
    again = "; faster again beyond" if gains[-1] >= 0 else ""
    low, high = places[i], places[i + 1]
    if high >= UNLIMITED:
        return BreakEven(f"above {rate(low)}", low)  # no rate to interpolate to
    share = gains[i] / (gains[i] - gains[i + 1])
    bits = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return BreakEven(rate(bits) + again, bits)
