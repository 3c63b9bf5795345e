"""Natural compression: powers of two below the largest of a block."""

# mypy: ignore-errors

import triton
import triton.language as tl

from .common import COEFFICIENTS, draws, source


@triton.jit
def power(exponent, dtype: tl.constexpr):
    """2 to the power of an integer, which may be subnormal."""
    if dtype == tl.float64:
        wide = exponent.to(tl.int64)
        tiny = (wide * 0 + 1) << tl.maximum(wide + 1074, 0)
        return tl.where(wide < -1022, tiny, (wide + 1023) << 52).to(tl.float64, bitcast=True)
    else:
        wide = exponent.to(tl.int32)
        tiny = (wide * 0 + 1) << tl.maximum(wide + 149, 0)
        return tl.where(wide < -126, tiny, (wide + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def leading(top):
    """The exponent e with 2^(e - 1) <= top < 2^e, from the bits; a subnormal number is an integer times the smallest."""
    if top.dtype == tl.float64:
        bits = top.to(tl.int64, bitcast=True)
        whole = bits.to(tl.float64).to(tl.int64, bitcast=True)
        return tl.where(bits < 0x10000000000000, (whole >> 52) - 2096, (bits >> 52) - 1022).to(tl.int32)
    else:
        bits = top.to(tl.int32, bitcast=True)
        whole = bits.to(tl.float32).to(tl.int32, bitcast=True)
        return tl.where(bits < 0x800000, (whole >> 23) - 275, (bits >> 23) - 126)


@triton.jit
def decoded(code, base, dtype: tl.constexpr):
    """The signed powers of two of codes (int32)."""
    bits = ((code & 127) << 23) | ((code & 128) << 24)
    return bits.to(tl.float32, bitcast=True).to(dtype) * power(base, dtype)


@triton.jit(do_not_specialize=[*COEFFICIENTS, "k0", "k1"])
def natural_encode(
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
    bases,
    BLOCK: tl.constexpr,
    HIGHEST: tl.constexpr,
    HAS_G: tl.constexpr,
    EF: tl.constexpr,
):
    """Codes, the largest exponent (at most HIGHEST) and the residual of one block."""
    block = tl.program_id(0).to(tl.int64)
    where = block * BLOCK + tl.arange(0, BLOCK)
    mask = where < n
    v = source(x, g, beta_low, beta_high, gamma_low, gamma_high, where, mask, HAS_G)
    y = tl.abs(v)
    top = tl.max(y, axis=0)
    base = tl.where((top > 0) & (top < float("inf")), tl.minimum(leading(top), HIGHEST), 0)
    tl.store(bases + block, base.to(tl.int16))
    # Three factors: each is in range even where their product is not.
    shift = 127 - base
    a = shift // 3
    b = (shift - a) // 2
    y = ((y * power(a, v.dtype)) * power(b, v.dtype)) * power(shift - a - b, v.dtype)
    y = y.to(tl.float32)
    random = draws(k0, k1, where)
    carried = (y.to(tl.int32, bitcast=True) + (random >> 9).to(tl.int32)) >> 23
    low = (random >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08 < y * 0.5
    code = tl.where(y < 2.0, low.to(tl.int32), carried - 127)
    code = tl.minimum(tl.maximum(code, 0), 127) | tl.where(v < 0, 128, 0)
    tl.store(codes + where, code.to(tl.uint8), mask=mask)
    if EF:
        tl.store(x + where, v - decoded(code, base, v.dtype), mask=mask)


@triton.jit
def natural(
    codes,
    bases,
    where,
    n,
    BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Signed powers of two; float64 if BITS is 64, otherwise float32."""
    code = tl.load(codes + where, mask=where < n, other=0).to(tl.int32)
    base = tl.load(bases + where // BLOCK, mask=where < n, other=0)
    if BITS == 64:
        return decoded(code, base, tl.float64)
    else:
        return decoded(code, base, tl.float32)
