"""Decoding sorted indices, and adding what they select, for all payloads of a bucket at once (`wire` describes the codes).

Bits that mark entries are counted by tile; with prefix sums of the counts each entry knows its rank, and is decoded on its
own. No access leaves its tensor, whatever the bytes are.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from .bucket import address, locate
from .common import real, widen

_SIZES = ["lists", "tensors", "ranks", "alpha_low", "alpha_high"]


@triton.jit
def marks(line, tile, TILE: tl.constexpr):
    """Places in the marking bits of a list, and whether a bit is set there."""
    where = tile * TILE + tl.arange(0, TILE)
    byte = tl.load(address(line, 1, tl.uint8) + (where >> 3), mask=where < tl.load(line + 2), other=0)
    return where, (byte.to(tl.int32) >> (where & 7).to(tl.int32)) & 1


@triton.jit(do_not_specialize=_SIZES)
def count_marks(table, lists, counts, COLUMNS: tl.constexpr, LINES: tl.constexpr, TILE: tl.constexpr):
    """How many bits of each tile are set."""
    line, tile = locate(table, lists, COLUMNS, LINES)
    _, bit = marks(line, tile, TILE)
    tl.store(counts + tl.program_id(0), tl.sum(bit, axis=0).to(tl.int64))


@triton.jit(do_not_specialize=_SIZES)
def decode_marks(
    table, lists, before, entries, COLUMNS: tl.constexpr, LINES: tl.constexpr, TILE: tl.constexpr
):
    """The index of each entry. A line: first program, marks, bits, low parts, their bytes, width or -1, k, first entry."""
    line, tile = locate(table, lists, COLUMNS, LINES)
    where, bit = marks(line, tile, TILE)
    earlier = tl.load(before + tl.program_id(0)) - tl.load(before + tl.load(line))
    rank = earlier + tl.cumsum(bit, axis=0) - bit
    width, k = tl.load(line + 5), tl.load(line + 6)
    kept = (bit == 1) & (rank < k)
    index = where
    if width >= 0:
        low_bytes = tl.load(line + 4)
        first = rank * width
        low = tl.zeros((TILE,), dtype=tl.int64)
        for further in tl.static_range(8):  # enough for 57 bits
            byte = (first >> 3) + further
            part = tl.load(address(line, 3, tl.uint8) + byte, mask=kept & (byte < low_bytes), other=0)
            low = low | (part.to(tl.int64) << (8 * further))
        low = (low >> (first & 7)) & ((tl.full((TILE,), 1, tl.int64) << width) - 1)
        index = ((where - rank) << width) | low
    tl.store(entries + tl.load(line + 7) + rank, index, mask=kept)


@triton.jit
def announced(line):
    """How many of the k entries of a rank count: all, or the number in its payload."""
    k, held = tl.load(line + 5), tl.load(line + 7)
    if held != 0:
        k = tl.minimum(tl.load(held.to(tl.pointer_type(tl.int32))).to(tl.int64), k)
    return k


@triton.jit(do_not_specialize=_SIZES)
def combine_entries(
    table,
    tensors,
    ranks,
    entries,
    alpha_low,
    alpha_high,
    COLUMNS: tl.constexpr,
    LINES: tl.constexpr,
    DTYPE: tl.constexpr,
    VALUE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Overwrite each tensor with alpha times the sum over ranks, in their order.

    A line: first program, result, elements, unused, and for each rank its first entry, k, values, and its number or 0.
    """
    line, tile = locate(table, tensors, COLUMNS, LINES)
    out, n = address(line, 1, DTYPE), tl.load(line + 2)
    start = tile * TILE
    where = start + tl.arange(0, TILE)
    tl.store(out + where, tl.zeros((TILE,), dtype=DTYPE), mask=where < n)
    alpha = real(alpha_low, alpha_high, DTYPE)
    parts = line
    for _ in range(ranks):
        mine, count = entries + tl.load(parts + 4), announced(parts)
        # The first entry that is not below `start`: entries increase.
        low, high = count * 0, count
        while low < high:
            middle = (low + high) // 2
            below = tl.load(mine + middle) < start
            low = tl.where(below, middle + 1, low)
            high = tl.where(below, high, middle)
        place = low + tl.arange(0, TILE)
        index = tl.load(mine + place, mask=place < count, other=-1)
        mask = (index >= start) & (index < start + TILE) & (index < n)
        value = widen(tl.load(address(parts, 6, VALUE) + place, mask=mask, other=0.0), DTYPE) * alpha
        # Another thread may have written this element for the last rank.
        tl.debug_barrier()
        tl.store(out + index, tl.load(out + index, mask=mask, other=0.0) + value, mask=mask)
        parts += 4


@triton.jit(do_not_specialize=_SIZES)
def commit_entries(
    table,
    tensors,
    entries,
    COLUMNS: tl.constexpr,
    LINES: tl.constexpr,
    DTYPE: tl.constexpr,
    VALUE: tl.constexpr,
    MASK: tl.constexpr,
    TILE: tl.constexpr,
):
    """Subtract sent values from v, and with MASK set m to zero there; lines as above, of one rank, with m's address."""
    line, tile = locate(table, tensors, COLUMNS, LINES)
    v, n = address(line, 1, DTYPE), tl.load(line + 2)
    place = tile * TILE + tl.arange(0, TILE)
    kept = place < announced(line)
    index = tl.load(entries + tl.load(line + 4) + place, mask=kept, other=0)
    mask = kept & (index >= 0) & (index < n)
    value = widen(tl.load(address(line, 6, VALUE) + place, mask=mask, other=0.0), DTYPE)
    tl.store(v + index, tl.load(v + index, mask=mask, other=0.0) - value, mask=mask)
    if MASK:
        tl.store(address(line, 3, DTYPE) + index, tl.zeros((TILE,), dtype=DTYPE), mask=mask)


@triton.jit(do_not_specialize=["width"])
def mark_entries(
    indices, given, k, d, count, width, marks, BITMAP: tl.constexpr, LIMITED: tl.constexpr, TILE: tl.constexpr
):
    """Set the mark (a byte) of each of `k` entries: the `given` indices, then d - 1; with LIMITED, only `count` are real."""
    entry = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = entry < k
    index = tl.load(indices + entry, mask=entry < given, other=d - 1)
    place = index
    if BITMAP:
        # A bitmap holds no padding.
        mask = entry < given
        if LIMITED:
            mask = mask & (entry < tl.load(count))
    else:
        place = (index >> width) + entry
    tl.store(marks + place, tl.full((TILE,), 1, tl.uint8), mask=mask)


@triton.jit(do_not_specialize=["width"])
def pack_entries(indices, given, k, d, width, low_bytes, marks, bits, out, BYTES: tl.constexpr):
    """The low parts of `k` entries, then their marks, as bits."""
    byte = tl.program_id(0).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    lane = tl.arange(0, 8)[None, :]
    low = byte * 8
    entry = (low[:, None] + lane) // tl.maximum(width, 1)
    of_low = (byte < low_bytes)[:, None] & (entry < k)
    index = tl.load(indices + entry, mask=of_low & (entry < given), other=d - 1)
    one = (index >> ((low[:, None] + lane) - entry * width)) & 1
    place = ((byte - low_bytes) * 8)[:, None] + lane
    mark = tl.load(marks + place, mask=(place >= 0) & (place < bits), other=0)
    bit = tl.where(of_low, one.to(tl.int32), mark.to(tl.int32))
    total = low_bytes + (bits + 7) // 8
    tl.store(out + byte, tl.sum(bit << lane, axis=1).to(tl.uint8), mask=byte < total)
