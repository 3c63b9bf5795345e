"""Adding decoded payloads of two parts: to one tensor, or of all ranks for all tensors of a bucket.

DECODE is the program of a format. It takes the two parts, places, the number of elements, the format's settings (0 where it
has none) and TILE, and returns TILE decoded numbers; what it returns beyond the last element does not matter.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from .bucket import SIZES, address, locate
from .common import divide, real


@triton.jit
def add_decoded(
    out,
    first,
    second,
    n,
    DECODE: tl.constexpr,
    BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """out += decoded."""
    where = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = where < n
    v = tl.load(out + where, mask=mask, other=0.0)
    tl.store(out + where, v + DECODE(first, second, where, n, BLOCK, LEVELS, BITS, TILE), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def combine_decoded(
    table,
    tensors,
    ranks,
    divisor_low,
    divisor_high,
    COLUMNS: tl.constexpr,
    LINES: tl.constexpr,
    DTYPE: tl.constexpr,
    SECOND: tl.constexpr,
    DIVIDE: tl.constexpr,
    DECODE: tl.constexpr,
    BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Each tensor = the sum over ranks, in their order, over the divisor."""
    line, tile = locate(table, tensors, COLUMNS, LINES)
    n = tl.load(line + 2)
    where = tile * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE,), dtype=DTYPE)
    parts = line
    for _ in range(ranks):
        first, second = address(parts, 4, tl.uint8), address(parts, 5, SECOND)
        total += DECODE(first, second, where, n, BLOCK, LEVELS, BITS, TILE)
        parts += 2
    if DIVIDE:
        divisor = tl.zeros((TILE,), dtype=DTYPE) + real(divisor_low, divisor_high, DTYPE)
        total = divide(total, divisor, False)
    tl.store(address(line, 1, DTYPE) + where, total, mask=where < n)
