"""Shared by several kernels: reading the source, the generator, exact division, the fixed tree."""

# mypy: ignore-errors
# Triton compiles this source itself; Python's types do not apply.

import re

import triton
import triton.language as tl

# Triton 3.0 to 3.4 (at least) compile `tl.div_rn` to an instruction that flushes subnormals to zero; 3.9 does not.
DIVIDES_SUBNORMALS = tl.constexpr(tuple(int(i) for i in re.findall(r"\d+", triton.__version__)[:2]) >= (3, 9))


COEFFICIENTS = ["beta_low", "beta_high", "gamma_low", "gamma_high"]
"""Parameters of every encoder that may change from step to step."""


@triton.jit
def real(low, high, dtype: tl.constexpr):
    """A float64 from its halves, rounded to `dtype`."""
    bits = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
    return bits.to(tl.float64, bitcast=True).to(dtype)


@triton.jit
def real_bits(COUNT: tl.constexpr, BITS: tl.constexpr):
    """COUNT times the float64 of these bits: a literal would be read as float32."""
    return tl.full((COUNT,), BITS, tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def widen(values, dtype: tl.constexpr):
    """Values of a payload in the dtype of the result. bfloat16 as bits: Triton's interpreter loses its subnormal numbers."""
    if values.dtype == tl.bfloat16:
        return (values.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True).to(dtype)
    else:
        return values.to(dtype)


@triton.jit
def source(x, g, beta_low, beta_high, gamma_low, gamma_high, where, mask, HAS_G: tl.constexpr):
    """The input of an encoder: x, or beta * x + gamma * g; zero where masked."""
    v = tl.load(x + where, mask=mask, other=0.0)
    if HAS_G:
        w = tl.load(g + where, mask=mask, other=0.0)
        v = v * real(beta_low, beta_high, v.dtype) + w * real(gamma_low, gamma_high, v.dtype)
    return v


@triton.jit
def mix(h):
    h = h ^ (h >> 16)
    h = h * 0x7FEB352D
    h = h ^ (h >> 15)
    h = h * 0x846CA68B
    return h ^ (h >> 16)


@triton.jit
def draws(k0, k1, index):
    """32 random bits for each element index (int64); k0 and k1 are the halves of the word, as int32."""
    start = k0.to(tl.uint32, bitcast=True)
    stride = k1.to(tl.uint32, bitcast=True) | 1
    return mix(index.to(tl.uint32) * stride + start + (index >> 32).to(tl.uint32) * 0x9E3779B9)


@triton.jit
def uniforms(k0, k1, index, dtype: tl.constexpr):
    """Uniform numbers in [0, 1): the upper 24 bits, which float32 holds exactly."""
    return (draws(k0, k1, index) >> 8).to(tl.int32).to(dtype) * 5.9604644775390625e-08


@triton.jit
def divide(a, b, NORMAL: tl.constexpr):
    """a / b, correctly rounded (`/` is that for float64 only). NORMAL: nothing involved can be subnormal."""
    if a.dtype == tl.float64:
        return a / b
    elif NORMAL or DIVIDES_SUBNORMALS:
        return tl.div_rn(a, b)
    else:
        # float64 has more than twice the digits of float32, so rounding twice equals rounding once.
        return (a.to(tl.float64) / b.to(tl.float64)).to(tl.float32)


@triton.jit
def halve(y, ROWS: tl.constexpr, WIDTH: tl.constexpr, LOG: tl.constexpr):
    """Sum of each row: the upper half is added to the lower until one is left (a sum of two has one order only)."""
    for level in tl.static_range(LOG):
        y = tl.sum(tl.reshape(y, (ROWS, 2, WIDTH >> (level + 1))), axis=1)
    return tl.reshape(y, (ROWS,))


@triton.jit
def keys(v):
    """The bits of |v| as integers, which sort like |v|, with NaN above all."""
    if v.dtype == tl.float64:
        return v.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
    else:
        return v.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def row_sums(values, n, out):
    """Sums of blocks of 1024 of each row of float64 numbers; the second axis of the grid counts rows."""
    block = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1).to(tl.int64)
    where = block * 1024 + tl.arange(0, 1024)
    y = tl.load(values + row * n + where, mask=where < n, other=0.0)
    place = row * tl.num_programs(0) + block
    tl.store(out + place + tl.arange(0, 1), halve(y, 1, 1024, 10))


@triton.jit(do_not_specialize=COEFFICIENTS)
def form(x, g, out, beta_low, beta_high, gamma_low, gamma_high, n, TILE: tl.constexpr):
    """out = beta * x + gamma * g."""
    where = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = where < n
    v = source(x, g, beta_low, beta_high, gamma_low, gamma_high, where, mask, True)
    tl.store(out + where, v, mask=mask)


@triton.jit(do_not_specialize=["k0", "k1", "begin_low", "begin_high"])
def fill_uniforms(out, k0, k1, begin_low, begin_high, n, TILE: tl.constexpr):
    """out = the uniform numbers of elements begin, begin + 1, …"""
    where = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    begin = (begin_high.to(tl.int64) << 32) | (begin_low.to(tl.int64) & 0xFFFFFFFF)
    tl.store(out + where, uniforms(k0, k1, where + begin, out.dtype.element_ty), mask=where < n)
