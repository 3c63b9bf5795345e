"""How a bucket is dealt out to the ranks of an all-to-all: evenly, by the bytes that are sent.

The elements of a bucket are one line, in the order of its parameters. It is cut into as many ranges as there are ranks,
of nearly equal bytes, wherever the cuts fall: the owner of a range gets the end of one parameter, whole ones, and
the start of another. Everything is integer arithmetic on sizes, so that all ranks cut alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

GRAIN = 64
"""Compressed parameters are cut at multiples of this many elements: codes fill whole bytes and vector registers."""
DENSE_GRAIN = 4
"""The same for uncompressed ones, whose elements are larger."""


class Share(NamedTuple):
    """A piece of a parameter, and the number of the range it belongs to."""

    start: int
    stop: int
    number: int


def dealt(
    counts: Sequence[int], nbytes: Sequence[int], grains: Sequence[int], ranges: int
) -> list[list[Share]]:
    """The pieces of each parameter, given its elements, bytes on the wire and grain, for a number of ranges.

    A parameter without elements has one empty piece.

    >>> dealt([256, 0, 128], [256, 0, 128], [64, 64, 64], 2)
    [[Share(start=0, stop=192, number=0), Share(start=192, stop=256, number=1)], [Share(start=0, stop=0, number=1)], [Share(start=0, stop=128, number=1)]]
    """
    starts = [0, *accumulate(nbytes)]
    pieces: list[list[Share]] = []
    number = 0  # the range that takes the next element
    for place, count in enumerate(counts):
        shares, start = [], 0
        while number < ranges - 1:
            border = starts[-1] * (number + 1) // ranges - starts[place]
            cut = _cut(border, nbytes[place], count, grains[place])
            if cut >= count:
                break
            if cut > start:
                shares.append(Share(start, cut, number))
                start = cut
            number += 1
        if start < count or not count:
            shares.append(Share(start, count, number))
        pieces.append(shares)
    return pieces


def _cut(border: int, nbytes: int, count: int, grain: int) -> int:
    """The element of a parameter that is closest to a border in bytes; `count` if the border lies behind it."""
    if border >= nbytes:
        return count
    element = max(border, 0) * count // nbytes
    return min((element + grain // 2) // grain * grain, count)
