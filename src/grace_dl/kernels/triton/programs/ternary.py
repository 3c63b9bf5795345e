"""TernGrad: three values per element, five elements per byte (`wire.TRIT_GROUP` describes the order)."""

# mypy: ignore-errors

import triton
import triton.language as tl

from .common import COEFFICIENTS, halve, real, source, uniforms


@triton.jit(do_not_specialize=COEFFICIENTS)
def square_sums(
    x,
    g,
    beta_low,
    beta_high,
    gamma_low,
    gamma_high,
    n,
    factor,
    tops,
    sums,
    SCALED: tl.constexpr,
    HAS_G: tl.constexpr,
):
    """The largest magnitude of each block of 1024, and the sum of squares in float64, with SCALED of v * factor."""
    block = tl.program_id(0).to(tl.int64)
    where = block * 1024 + tl.arange(0, 1024)
    v = source(x, g, beta_low, beta_high, gamma_low, gamma_high, where, where < n, HAS_G)
    y = v.to(tl.float64)
    if SCALED:
        y = y * tl.load(factor)
    else:
        tl.store(tops + block, tl.max(tl.abs(v), axis=0))
    tl.store(sums + block + tl.arange(0, 1), halve(y * y, 1, 1024, 10))


@triton.jit
def clipped(total, factor, top, clip_low, clip_high, n, SCALED: tl.constexpr):
    """min(clip * sigma, top), one number; sigma about zero."""
    one = tl.arange(0, 1)
    most = tl.load(top + one)
    count = tl.full((1,), 0.0, tl.float64) + n
    sigma = tl.sqrt(tl.load(total + one) / count)
    if SCALED:
        sigma = sigma / tl.load(factor + one)
    return tl.minimum((sigma * real(clip_low, clip_high, tl.float64)).to(most.dtype), most)


@triton.jit(do_not_specialize=[*COEFFICIENTS, "k0", "k1", "clip_low", "clip_high"])
def ternary_encode(
    x,
    g,
    beta_low,
    beta_high,
    gamma_low,
    gamma_high,
    k0,
    k1,
    clip_low,
    clip_high,
    n,
    total,
    factor,
    top,
    codes,
    scale,
    SCALED: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_G: tl.constexpr,
    EF: tl.constexpr,
):
    """Bytes of one group, the scale, and the residual. The last group is as narrow as it can be."""
    group = tl.program_id(0).to(tl.int64)
    s = clipped(total, factor, top, clip_low, clip_high, n, SCALED)
    tl.store(scale + tl.arange(0, 1), s)
    first = group * (5 * GROUP)
    width = tl.minimum((n - first + 4) // 5, GROUP)
    column = tl.arange(0, GROUP)
    byte = tl.zeros((GROUP,), dtype=tl.int32)
    for place in tl.static_range(5):
        where = first + place * width + column
        mask = (column < width) & (where < n)
        v = source(x, g, beta_low, beta_high, gamma_low, gamma_high, where, mask, HAS_G)
        # A uniform number below 1 times s is below s, so elements that reach s are always kept.
        kept = (uniforms(k0, k1, where, v.dtype) * s < tl.abs(v)).to(tl.int32)
        trit = tl.where(v < 0, -kept, kept)
        byte += tl.where(mask, trit + 1, 0) * (3**place)
        if EF:
            tl.store(x + where, v - trit.to(v.dtype) * s, mask=mask)
    tl.store(codes + group * GROUP + column, byte.to(tl.uint8), mask=column < width)


@triton.jit
def ternary(
    codes,
    scale,
    where,
    n,
    BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Trits times the scale; BLOCK is the number of bytes in a group."""
    group = where // (5 * BLOCK)
    inside = where - group * (5 * BLOCK)
    width = tl.maximum(tl.minimum((n - group * (5 * BLOCK) + 4) // 5, BLOCK), 1)
    place = inside // width
    byte = tl.load(codes + group * BLOCK + (inside - place * width), mask=where < n, other=0).to(tl.int32)
    divisor = tl.where(place == 1, 3, tl.where(place == 2, 9, tl.where(place == 3, 27, 81)))
    divisor = tl.where(place == 0, 1, divisor)
    s = tl.load(scale)
    return ((byte // divisor) % 3 - 1).to(s.dtype) * s
