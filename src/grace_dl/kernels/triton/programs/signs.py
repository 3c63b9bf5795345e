"""One bit per element; a set bit means negative."""

# mypy: ignore-errors

import triton
import triton.language as tl

from .bucket import SIZES, address, locate
from .common import COEFFICIENTS, draws, halve, real, source


@triton.jit
def negatives(bits, where, mask):
    """Whether each element's bit is set."""
    byte = tl.load(bits + (where >> 3), mask=mask, other=0).to(tl.int32)
    return ((byte >> (where & 7).to(tl.int32)) & 1) == 1


@triton.jit
def packed(negative):
    """Rows of eight flags as bytes, the first in the lowest bit."""
    return tl.sum(negative.to(tl.int32) << tl.arange(0, 8)[None, :], axis=1).to(tl.uint8)


@triton.jit(do_not_specialize=[*COEFFICIENTS, "k0", "k1"])
def sign_encode(
    x,
    g,
    beta_low,
    beta_high,
    gamma_low,
    gamma_high,
    k0,
    k1,
    n,
    bits,
    flag,
    HAS_G: tl.constexpr,
    KEEP: tl.constexpr,
    BYTES: tl.constexpr,
):
    """Signs, random where zero; the flag (zero before) is set where anything is not zero."""
    byte = tl.program_id(0).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    where = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    mask = where < n
    v = source(x, g, beta_low, beta_high, gamma_low, gamma_high, where, mask, HAS_G)
    coin = (draws(k0, k1, where) >> 31) == 1
    negative = ((v < 0) | ((v == 0) & coin)) & mask
    tl.store(bits + byte, packed(negative), mask=byte * 8 < n)
    some = tl.max(tl.max(((v != 0) & mask).to(tl.int32), axis=1), axis=0)
    # All programs that store here store the same byte.
    tl.store(flag, some.to(tl.uint8), mask=some > 0)
    if KEEP and HAS_G:
        tl.store(x + where, v, mask=mask)


@triton.jit(do_not_specialize=COEFFICIENTS)
def settle(
    x,
    g,
    beta_low,
    beta_high,
    gamma_low,
    gamma_high,
    n,
    owed,
    HAS_G: tl.constexpr,
    TILE: tl.constexpr,
):
    """x minus owed[0] where negative and owed[1] elsewhere; then as in `source`."""
    where = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = where < n
    v = tl.load(x + where, mask=mask, other=0.0)
    v = v - tl.where(v < 0, tl.load(owed), tl.load(owed + 1))
    if HAS_G:
        w = tl.load(g + where, mask=mask, other=0.0)
        v = v * real(beta_low, beta_high, v.dtype) + w * real(gamma_low, gamma_high, v.dtype)
    tl.store(x + where, v, mask=mask)


@triton.jit(do_not_specialize=COEFFICIENTS)
def pack_signs(
    x,
    g,
    beta_low,
    beta_high,
    gamma_low,
    gamma_high,
    n,
    bits,
    HAS_G: tl.constexpr,
    BYTES: tl.constexpr,
):
    """Signs."""
    byte = tl.program_id(0).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    where = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    mask = where < n
    v = source(x, g, beta_low, beta_high, gamma_low, gamma_high, where, mask, HAS_G)
    tl.store(bits + byte, packed(v < 0), mask=byte * 8 < n)


@triton.jit
def scaled_signs(
    bits,
    scale,
    where,
    n,
    BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """-scale or scale."""
    high = tl.load(scale)
    # A product, since Triton negates by subtracting from zero, which has no negative zero.
    return tl.where(negatives(bits, where, where < n), high * -1.0, high)


@triton.jit
def two_means(
    bits,
    means,
    where,
    n,
    BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The low or the high mean."""
    return tl.where(negatives(bits, where, where < n), tl.load(means), tl.load(means + 1))


@triton.jit
def sign_add(out, bits, n, TILE: tl.constexpr):
    """out += 1 or -1."""
    where = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = where < n
    negative = negatives(bits, where, mask)
    v = tl.load(out + where, mask=mask)
    tl.store(out + where, v + tl.where(negative, -1.0, 1.0).to(v.dtype), mask=mask)


@triton.jit(do_not_specialize=["k0", "k1", "voters"])
def sign_vote(out, ballots, voters, k0, k1, n, row, TILE: tl.constexpr):
    """out = the majority sign of the ballots (rows of `row` bytes), or the word's sign for ties."""
    where = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = where < n
    votes = tl.zeros((TILE,), dtype=tl.int32)
    for _ in range(voters):
        votes += 1 - 2 * negatives(ballots, where, mask).to(tl.int32)
        ballots += row
    coin = (draws(k0, k1, where) >> 31) == 1
    negative = (votes < 0) | ((votes == 0) & coin)
    tl.store(out + where, tl.where(negative, -1.0, 1.0).to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def sign_combine(
    table,
    tensors,
    ranks,
    COLUMNS: tl.constexpr,
    LINES: tl.constexpr,
    DTYPE: tl.constexpr,
    TILE: tl.constexpr,
):
    """The majority sign of the ranks whose tensor is not zero, the word's sign for ties; zero if there is none."""
    line, tile = locate(table, tensors, COLUMNS, LINES)
    n = tl.load(line + 2)
    word = tl.load(line + 3)
    where = tile * TILE + tl.arange(0, TILE)
    mask = where < n
    votes = tl.zeros((TILE,), dtype=tl.int32)
    voters = tl.zeros((TILE,), dtype=tl.int32)
    parts = line
    for _ in range(ranks):
        voter = (tl.load(address(parts, 5, tl.uint8)) != 0).to(tl.int32)
        votes += (1 - 2 * negatives(address(parts, 4, tl.uint8), where, mask).to(tl.int32)) * voter
        voters += voter
        parts += 2
    coin = (draws(word.to(tl.int32), (word >> 32).to(tl.int32), where) >> 31) == 1
    negative = (votes < 0) | ((votes == 0) & coin)
    sign = tl.where(voters == 0, 0.0, tl.where(negative, -1.0, 1.0))
    tl.store(address(line, 1, DTYPE) + where, sign.to(DTYPE), mask=mask)


@triton.jit
def block_sum(y):
    """Sum of 1024 numbers: three halvings in their own precision, then in float64."""
    for level in tl.static_range(3):
        y = tl.sum(tl.reshape(y, (2, 512 >> level)), axis=0)
    return halve(y.to(tl.float64), 1, 128, 7)


@triton.jit(do_not_specialize=COEFFICIENTS)
def side_sums(
    x,
    g,
    beta_low,
    beta_high,
    gamma_low,
    gamma_high,
    n,
    sums,
    counts,
    SIDES: tl.constexpr,
    SMALLER: tl.constexpr,
    HAS_G: tl.constexpr,
):
    """Sums of blocks of 1024 in float64: of |v|, or of the negative (first row) and the other elements (second).

    Everything is first multiplied by 2^-3, with SMALLER by 2^-67. `counts` receives how many are negative.
    """
    block = tl.program_id(0).to(tl.int64)
    where = block * 1024 + tl.arange(0, 1024)
    mask = where < n
    v = source(x, g, beta_low, beta_high, gamma_low, gamma_high, where, mask, HAS_G)
    negative = v < 0
    # Powers of two, which float32 holds too.
    if SMALLER:
        factor = 6.776263578034403e-21
    else:
        factor = 0.125
    if SIDES:
        low = tl.where(negative, v, 0.0)
        high = tl.where(negative, 0.0, v)
        tl.store(sums + block + tl.arange(0, 1), block_sum(low * factor))
        upper = sums + tl.num_programs(0).to(tl.int64)
        tl.store(upper + block + tl.arange(0, 1), block_sum(high * factor))
        tl.store(counts + block, tl.sum(negative.to(tl.int32), axis=0).to(tl.int64))
    else:
        tl.store(sums + block + tl.arange(0, 1), block_sum(tl.abs(v) * factor))
