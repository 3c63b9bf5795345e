"""Stochastic rounding to a few levels with one scale per block."""

# mypy: ignore-errors

import triton
import triton.language as tl

from .common import COEFFICIENTS, divide, halve, real_bits, source, uniforms


@triton.jit
def norms(v, top, ROWS: tl.constexpr, WIDTH: tl.constexpr, LOG: tl.constexpr, LARGEST: tl.constexpr):
    """The Euclidean norm of each row: at least its absmax, at most the largest finite number.

    float64 numbers whose squares would overflow or underflow are first multiplied by a power of two. The exponent is
    read from the bits; that of a subnormal number is too high, but is clamped anyway.
    """
    y = v.to(tl.float64)
    if v.dtype == tl.float64:
        exponent = ((top.to(tl.int64, bitcast=True) >> 52) & 0x7FF) - 1022
        exponent = tl.minimum(tl.maximum(exponent, -1000), 1000)
        power = ((1023 - exponent) << 52).to(tl.float64, bitcast=True)
        big = real_bits(ROWS, 0x5F30000000000000)  # 2^500
        small = real_bits(ROWS, 0x20B0000000000000)  # 2^-500
        factor = tl.where((top > big) | ((top < small) & (top > 0)), power, 1.0)
        y = y * factor[:, None]
        norm = tl.sqrt(halve(y * y, ROWS, WIDTH, LOG)) / factor
    else:
        norm = tl.sqrt(halve(y * y, ROWS, WIDTH, LOG))
    largest = real_bits(ROWS, LARGEST)
    return tl.maximum(tl.minimum(norm, largest).to(v.dtype), top)


@triton.jit
def lifts(scale, SIZE: tl.constexpr):
    """The power of two that scales a block up, and its inverse: 1 unless inverses of its numbers overflow."""
    if scale.dtype == tl.float64:
        below, up, down = (
            real_bits(SIZE, 0x20B0000000000000),
            real_bits(SIZE, 0x5FF0000000000000),
            real_bits(SIZE, 0x1FF0000000000000),
        )
    else:
        below = real_bits(SIZE, 0x3C30000000000000).to(tl.float32)
        up, down = (
            real_bits(SIZE, 0x43F0000000000000).to(tl.float32),
            real_bits(SIZE, 0x3BF0000000000000).to(tl.float32),
        )
    one = tl.full((SIZE,), 1.0, scale.dtype)
    return tl.where(scale < below, up, one), tl.where(scale < below, down, one)


@triton.jit
def steps(scale, levels):
    """The distance between two levels in each (scaled) block; `levels` times it is finite."""
    step = divide(scale, levels, False)
    if scale.dtype == tl.float64:
        below = (step.to(tl.int64, bitcast=True) - 1).to(tl.float64, bitcast=True)
    else:
        below = (step.to(tl.int32, bitcast=True) - 1).to(tl.float32, bitcast=True)
    return tl.where(step * levels < float("inf"), step, below)


@triton.jit(do_not_specialize=[*COEFFICIENTS, "k0", "k1"])
def block_encode(
    x,
    g,
    beta_low,
    beta_high,
    gamma_low,
    gamma_high,
    k0,
    k1,
    n,
    codes,
    scales,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    LOG: tl.constexpr,
    LEVELS: tl.constexpr,
    BITS: tl.constexpr,
    LARGEST: tl.constexpr,
    L2: tl.constexpr,
    PACKED: tl.constexpr,
    HAS_G: tl.constexpr,
    EF: tl.constexpr,
):
    """Codes (bytes if PACKED, else int32, one per element), scales and residual of ROWS blocks.

    WIDTH is BLOCK rounded up to a power of two, 2^LOG; LARGEST the bits of the largest finite scale, as float64.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    where = row[:, None] * BLOCK + column[None, :]
    mask = (column < BLOCK)[None, :] & (where < n)
    v = source(x, g, beta_low, beta_high, gamma_low, gamma_high, where, mask, HAS_G)
    size = tl.abs(v)
    scale = tl.max(size, axis=1)
    if L2:
        scale = norms(v, scale, ROWS, WIDTH, LOG, LARGEST)
    tl.store(scales + row, scale, mask=row * BLOCK < n)
    levels = tl.full((ROWS,), LEVELS, v.dtype)
    up_by, down_by = lifts(scale, ROWS)
    lifted = scale * up_by
    inverse = divide(levels, tl.where(lifted > 0, lifted, 1.0), False)
    y = tl.minimum((size * up_by[:, None]) * inverse[:, None], levels[:, None])
    whole = tl.floor(y)
    up = uniforms(k0, k1, where, v.dtype) < y - whole
    q = whole.to(tl.int32) + up.to(tl.int32)
    q = tl.where(v < 0, -q, q)
    code = tl.where(mask, q + LEVELS, 0)
    if not PACKED:
        tl.store(codes + where, code, mask=mask)
    elif BITS == 16:
        tl.store(codes + where * 2, (code & 255).to(tl.uint8), mask=mask)
        tl.store(codes + where * 2 + 1, (code >> 8).to(tl.uint8), mask=mask)
    elif BITS == 8:
        tl.store(codes + where, code.to(tl.uint8), mask=mask)
    else:
        SHARE: tl.constexpr = 8 // BITS
        shifts = tl.arange(0, SHARE) * BITS
        groups = tl.reshape(code, (ROWS, WIDTH // SHARE, SHARE))
        byte = tl.sum(groups << shifts[None, None, :], axis=2)
        group = tl.arange(0, WIDTH // SHARE)
        place = row[:, None] * (BLOCK // SHARE) + group[None, :]
        kept = (group < BLOCK // SHARE)[None, :] & (place * SHARE < n)
        tl.store(codes + place, byte.to(tl.uint8), mask=kept)
    if EF:
        decoded = (q.to(v.dtype) * steps(lifted, levels)[:, None]) * down_by[:, None]
        tl.store(x + where, v - decoded, mask=mask)


@triton.jit
def pack_codes(codes, n, out, BITS: tl.constexpr, BYTES: tl.constexpr):
    """Pack codes (int32) into a stream of bits; each byte collects its eight."""
    byte = tl.program_id(0).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    bit = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    place = bit // BITS
    code = tl.load(codes + place, mask=place < n, other=0)
    one = (code >> (bit % BITS).to(tl.int32)) & 1
    value = tl.sum(one << tl.arange(0, 8)[None, :], axis=1)
    tl.store(out + byte, value.to(tl.uint8), mask=byte * 8 < n * BITS)


@triton.jit
def read_codes(codes, where, n, BITS: tl.constexpr):
    """The codes of elements. SPAN is how many bytes one code can span, which depends on the bits at which codes start."""
    SPAN: tl.constexpr = 1 if 8 % BITS == 0 else (BITS + 14) // 8 if BITS % 8 else BITS // 8
    bit = where * BITS
    byte = bit >> 3
    mask = where < n
    value = tl.load(codes + byte, mask=mask, other=0).to(tl.int32)
    for further in tl.static_range(1, SPAN):
        inside = mask & ((byte + further) * 8 < n * BITS)
        value = value | (tl.load(codes + byte + further, mask=inside, other=0).to(tl.int32) << (8 * further))
    return (value >> (bit & 7).to(tl.int32)) & ((1 << BITS) - 1)


@triton.jit
def quantised(
    codes,
    scales,
    where,
    n,
    BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """q * (scale / levels)."""
    code = read_codes(codes, where, n, BITS)
    scale = tl.load(scales + where // BLOCK, mask=where < n, other=0.0)
    q = (code - LEVELS).to(scale.dtype)
    up, down = lifts(scale, TILE)
    return (q * steps(scale * up, tl.full((TILE,), LEVELS, scale.dtype))) * down
