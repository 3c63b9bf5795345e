"""Wire formats: sizes, layouts and tables shared by encoders and decoders of all backends.

Compressors read payload sizes here; backends read layouts here. Nothing in this module touches a tensor's elements.
"""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Spec = tuple[tuple[torch.dtype, int], ...]
"""Dtype and length of each tensor of a payload, in order."""


def spec_bytes(spec: Spec) -> int:
    """Bytes of a payload."""
    return sum(kind.itemsize * count for kind, count in spec)


Payloads = Sequence[Sequence[Sequence[Tensor]]]
"""The parts of payloads, by tensor and rank."""

Sent = tuple[Tensor, Tensor, Tensor | None]
"""The values of a sparse payload, its coded indices, and how many are valid: one int32, or None for all."""


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

E4M3_MAX = 448.0


@functools.cache
def fp8_limit(dtype: torch.dtype) -> float:
    """The largest scale a block of 8-bit floats may have: 448 times it is still finite."""
    most = torch.tensor(torch.finfo(dtype).max, dtype=dtype)
    limit = most / E4M3_MAX
    if bool(torch.isinf(limit * E4M3_MAX)):
        limit = torch.nextafter(limit, torch.zeros_like(limit))
    return limit.item()


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


def index_bytes(d: int, k: int) -> int:
    """Bytes for `k` sorted indices below `d`: Elias-Fano, or a bitmap if that is smaller.

    Not cached: some methods send a different number of elements at every step.

    >>> index_bytes(1_000_000, 10_000) * 8 / 10_000
    8.5632
    >>> index_bytes(16, 8), index_bytes(16, 0)
    (2, 0)
    """
    if k == 0:
        return 0
    low, high = index_parts(d, k)
    return min((d + 7) // 8, low + high)


def adaq_slots(ratio: float, numel: int) -> int:
    """Slots for AdaQ's indices: each side rounds separately and sends at least one, up to two more than the ratio."""
    return min(numel, selected(ratio, numel) + 2)


class Chunking(NamedTuple):
    """How the largest elements of chunks are sent: positions of `width` bits, codes of `bits` bits, and means of bins.

    Each chunk's positions and codes fill whole bytes, so that chunks are coded independently.
    """

    size: int
    """Elements of a chunk, a power of two."""
    kept: int
    """Elements of a chunk that are sent."""
    bits: int
    """Bits of a value: its sign, and the number of its bin."""
    width: int
    """Bits of a position."""

    @property
    def levels(self) -> int:
        """Bins of a chunk."""
        return 1 << (self.bits - 1)

    def packed(self, width: int) -> int:
        """Bytes for codes of `width` bits of one chunk."""
        return packed_bytes(self.kept, width)

    def of_rest(self, rest: int) -> Chunking:
        """The chunking of the last `rest` elements: the same share of them is sent, at least one."""
        return self._replace(size=rest, kept=selected(self.kept / self.size, rest))

    def sent(self, numel: int) -> int:
        """How many of `numel` elements are sent."""
        full, rest = divmod(numel, self.size)
        return full * self.kept + (self.of_rest(rest).kept if rest else 0)

    def spec(self, numel: int) -> Spec:
        """The payload of `numel` elements: positions, codes, means.

        >>> Chunking(4096, 64, 2, 12).spec(2 * 4096)
        ((torch.uint8, 192), (torch.uint8, 32), (torch.bfloat16, 4))
        """
        full, rest = divmod(numel, self.size)
        last = self.of_rest(rest) if rest else None
        sizes = [
            full * self.packed(width) + (last.packed(width) if last else 0)
            for width in (self.width, self.bits)
        ]
        chunks = full + (last is not None)
        return ((torch.uint8, sizes[0]), (torch.uint8, sizes[1]), (torch.bfloat16, chunks * self.levels))


DCT_SIDE = 64
"""Rows and columns of a chunk whose cosine transform is sent."""

DCT_WIDTH = 12
"""Bits of a coefficient's position."""


class DctLayout(NamedTuple):
    """How the largest coefficients of chunks of 64 x 64 elements are sent: positions of 12 bits, and values.

    The last chunk has 1, 2, 4, … or 64 rows of 64, padded with zeros. Each chunk's positions fill whole bytes.
    """

    kept: int
    """Coefficients of a full chunk that are sent."""
    columns: int = 0
    """If not 0, chunks are square tiles of a matrix with this many columns; otherwise they are consecutive elements."""

    @classmethod
    def of(cls, kept: int, shape: Sequence[int]) -> DctLayout:
        """The layout for a parameter of this shape.

        >>> DctLayout.of(32, (128, 192)).columns, DctLayout.of(32, (128, 100)).columns
        (192, 0)
        """
        tiled = len(shape) == 2 and shape[0] % DCT_SIDE == 0 and shape[1] % DCT_SIDE == 0
        return cls(kept, shape[1] if tiled else 0)

    def rest(self, numel: int) -> tuple[int, int]:
        """Rows of the last chunk, and how many of its coefficients are sent; zeros if all chunks are full.

        >>> DctLayout(32).rest(4096 + 600)
        (16, 8)
        """
        left = numel % DCT_SIDE**2
        if not left:
            return 0, 0
        rows = 1 << (blocks(left, DCT_SIDE) - 1).bit_length()
        return rows, selected(self.kept / DCT_SIDE**2, rows * DCT_SIDE)

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        """The payload of `numel` elements: positions, and values of `dtype`.

        >>> DctLayout(32).spec(2 * 4096, torch.float32)
        ((torch.uint8, 96), (torch.float32, 64))
        """
        full, kept = numel // DCT_SIDE**2, self.rest(numel)[1]
        positions = full * packed_bytes(self.kept, DCT_WIDTH) + packed_bytes(kept, DCT_WIDTH)
        return ((torch.uint8, positions), (dtype, full * self.kept + kept))


@functools.cache
def dct_factors() -> tuple[float, ...]:
    """1 / (2 cos((2 i + 1) pi / 2 n)) for n = 2, 4, … 64 and i < n / 2, each correctly rounded.

    By decimal arithmetic, because the last bit of a library's cosine is not the same everywhere.
    """
    with decimal.localcontext(prec=50):
        pi = decimal.Decimal("3.14159265358979323846264338327950288419716939937510")
        return tuple(
            float(1 / (2 * _cosine((2 * i + 1) * pi / (2 * n))))
            for n in (2 << level for level in range(6))
            for i in range(n // 2)
        )


def _cosine(x: decimal.Decimal) -> decimal.Decimal:
    total = term = decimal.Decimal(1)
    for order in range(1, 40):
        term *= -x * x / (2 * order * (2 * order - 1))
        total += term
    return total


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
