"""e4m3 floats with a scale per block.

Conversions are written out in integers: GPUs before compute capability 8.9 have none, and the others round alike.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from .common import COEFFICIENTS, divide, real_bits, source


@triton.jit
def narrowed(y):
    """The e4m3 code (int32) of float32 numbers of at most 448 in magnitude, rounded to nearest even."""
    bits = y.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # Below 2^-6, adding 2^14 rounds to the multiples of 2^-9, which are the subnormal numbers.
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    # Elsewhere half of the last of three mantissa bits is added, a little less if that bit is even.
    normal = (size - 0x3BF80001 + ((size >> 20) & 1)) >> 20
    return tl.where(size < 0x3C800000, small, normal) | ((bits >> 24) & 128)


@triton.jit
def widened(code):
    """The float32 numbers of e4m3 codes (int32)."""
    exponent = (code >> 3) & 15
    mantissa = code & 7
    normal = ((exponent + 120) << 23) | (mantissa << 20)
    small = (mantissa.to(tl.float32) * 0.001953125).to(tl.int32, bitcast=True)  # 2^-9
    # The sign is set as a bit: Triton negates by subtracting from zero, which has no negative zero.
    bits = tl.where(exponent == 0, small, normal) | ((code & 128) << 24)
    return bits.to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=COEFFICIENTS)
def fp8_encode(
    x,
    g,
    beta_low,
    beta_high,
    gamma_low,
    gamma_high,
    n,
    codes,
    scales,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    LIMIT: tl.constexpr,
    HAS_G: tl.constexpr,
    EF: tl.constexpr,
):
    """Codes, scales and residual of ROWS blocks; LIMIT has the bits of the largest scale, as float64.

    WIDTH is BLOCK rounded up to a power of two.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    where = row[:, None] * BLOCK + column[None, :]
    mask = (column < BLOCK)[None, :] & (where < n)
    v = source(x, g, beta_low, beta_high, gamma_low, gamma_high, where, mask, HAS_G)
    most = tl.full((ROWS,), 448.0, v.dtype)
    scale = tl.minimum(divide(tl.max(tl.abs(v), axis=1), most, False), real_bits(ROWS, LIMIT).to(v.dtype))
    tl.store(scales + row, scale, mask=row * BLOCK < n)
    divisor = tl.broadcast_to(tl.where(scale > 0, scale, 1.0)[:, None], (ROWS, WIDTH))
    y = tl.minimum(tl.maximum(divide(v, divisor, False), -most[:, None]), most[:, None])
    code = narrowed(y.to(tl.float32))
    tl.store(codes + where, code.to(tl.uint8), mask=mask)
    if EF:
        tl.store(x + where, v - widened(code).to(v.dtype) * scale[:, None], mask=mask)


@triton.jit
def fp8(
    codes,
    scales,
    where,
    n,
    BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """e4m3 times the scale of its block."""
    code = tl.load(codes + where, mask=where < n, other=0).to(tl.int32)
    scale = tl.load(scales + where // BLOCK, mask=where < n, other=0.0)
    return widened(code).to(scale.dtype) * scale
