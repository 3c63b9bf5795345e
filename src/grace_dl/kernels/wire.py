"""Wire formats: sizes, layouts and tables shared by encoders and decoders of all backends.

Compressors read payload sizes here; backends read layouts here. Nothing in this module touches a tensor's elements.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

Spec = tuple[tuple[torch.dtype, int], ...]
"""Dtype and length of each tensor of a payload, in order."""

Sent = tuple[Tensor, Tensor, int]
"""The values of a sparse payload, its coded indices, and the number of valid ones."""


def selected(ratio: float, numel: int) -> int:
    """How many of `numel` elements a ratio selects: ratio * numel rounded half up, at least one.

    >>> selected(0.3, 10), selected(0.001, 10), selected(0.25, 10), selected(0.5, 0)
    (3, 1, 3, 0)
    """
    return min(numel, max(1, math.floor(ratio * numel + 0.5)))


# Codes of a few bits ----------------------------------------------------------------------------------


def packed_bytes(n: int, bits: int) -> int:
    """Bytes for `n` codes of `bits` bits; the first code is in the lowest bits of the first byte."""
    return (n * bits + 7) // 8


def blocks(n: int, size: int) -> int:
    """Blocks of `size` elements that cover `n`."""
    return -(-n // size)


FP8_BLOCK = 256
"""Elements that share a scale in 8-bit floats."""

NATURAL_BLOCK = 4096
"""Elements that share a largest exponent in natural compression."""

NATURAL_EXPONENTS = {torch.float32: (-148, 127), torch.float64: (-1073, 1023)}
"""The exponents a block's largest power of two may have."""

TRIT_GROUP = 256
"""Bytes of a group of trits: byte j holds elements j, j + 256, … j + 4 * 256 of it, so that packing vectorizes."""


def trit_bytes(n: int) -> int:
    """Bytes for `n` values of -1, 0 or 1: five per byte."""
    return -(-n // 5)


@functools.cache
def tree_magnitudes() -> tuple[float, ...]:
    """The 128 magnitudes of Dettmers 2015 (section 3, dynamic tree quantisation) for 7 bits.

    The position of the leading one bit selects a decade, 1e-6 to 1; the bits after it divide the decade evenly. Each
    interval is represented by its upper end, so that the largest element of a tensor is exact.
    """
    values = [0.0]
    for place in range(7):
        decade = 10.0 ** (place - 6)
        values += [decade * (0.1 + 0.9 * (f + 1) / 2**place) for f in range(2**place)]
    return tuple(values)


# Sorted indices ---------------------------------------------------------------------------------------
#
# Elias-Fano (Elias 1974, Fano 1971) splits index i of an increasing sequence into its low bits, stored verbatim, and
# its high part, stored in unary: bit `high + position` of a second array is set. Bits fill bytes from the lowest one.
# A sequence with fewer than k indices is padded: Elias-Fano repeats `d - 1`, a bitmap holds no padding.


def low_width(d: int, k: int) -> int:
    """Bits of an index that are stored verbatim: floor(log2(d / k))."""
    return max(0, (d // k).bit_length() - 1)


def index_parts(d: int, k: int) -> tuple[int, int]:
    """Bytes of the low and of the high part of Elias-Fano."""
    low = low_width(d, k)
    return (k * low + 7) // 8, (k + (d >> low) + 1 + 7) // 8


def is_bitmap(d: int, k: int) -> bool:
    """Whether one bit per element is smaller than Elias-Fano."""
    return (d + 7) // 8 <= sum(index_parts(d, k))


@functools.lru_cache(4096)
def index_bytes(d: int, k: int) -> int:
    """Bytes for `k` sorted indices below `d`: Elias-Fano, or a bitmap if that is smaller.

    >>> index_bytes(1_000_000, 10_000) * 8 / 10_000
    8.5632
    >>> index_bytes(16, 8), index_bytes(16, 0)
    (2, 0)
    """
    if k == 0:
        return 0
    return (d + 7) // 8 if is_bitmap(d, k) else sum(index_parts(d, k))


def adaq_slots(ratio: float, numel: int) -> int:
    """Slots for AdaQ's indices: each side rounds separately and sends at least one, up to two more than the ratio."""
    return min(numel, selected(ratio, numel) + 2)


class Sampling(NamedTuple):
    """How DGC finds its threshold: the sampled elements, and the adaptation."""

    rank: int
    """The threshold is the `rank`-th largest magnitude of the sample."""
    samples: int
    start: int
    stride: int
    """Elements `start + j * stride` are sampled; with stride 0, random elements drawn from `word`."""
    word: int
    lower: float
    upper: float
    iterations: int
    resample: bool


# EDEN -------------------------------------------------------------------------------------------------

EDEN_BLOCK = 4096
EDEN_LEAST = 256

EDEN_CENTROIDS = {
    1: (0.797884560803,),
    2: (0.452780034636, 1.510417608499),
    3: (0.245094178944, 0.756005281206, 1.343909278505, 2.151945704537),
    4: (
        0.128395029851,
        0.38804829949,
        0.656759118532,
        0.942340456487,
        1.256231197347,
        1.618046386022,
        2.069017226531,
        2.732589570995,
    ),
}
"""The positive half of the Lloyd-Max centroids of N(0, 1), by bits per coordinate."""


def eden_tail(d: int) -> list[tuple[int, int]]:
    """Lengths and sizes of the blocks after the full ones: a tail is split if padding would waste much.

    >>> eden_tail(4096 * 3), eden_tail(4000), eden_tail(2100), eden_tail(1)
    ([], [(4000, 4096)], [(2048, 2048), (52, 256)], [(1, 256)])
    """
    tail = []
    rest = d % EDEN_BLOCK
    while rest:
        size = max(EDEN_LEAST, 1 << (rest - 1).bit_length())
        if size > EDEN_LEAST and size - rest > size // 8:
            size //= 2
        tail.append((min(rest, size), size))
        rest -= min(rest, size)
    return tail


def eden_sizes(d: int) -> tuple[int, int]:
    """Coded coordinates and blocks of `d` elements."""
    tail = eden_tail(d)
    return d // EDEN_BLOCK * EDEN_BLOCK + sum(size for _, size in tail), d // EDEN_BLOCK + len(tail)
