"""Deep gradient compression: momentum correction, and the threshold estimated from a sample."""

# mypy: ignore-errors

import triton
import triton.language as tl

from .bucket import address, locate
from .common import COEFFICIENTS, draws, keys, real, source


@triton.jit(do_not_specialize=["tensors", "mu_low", "mu_high"])
def correct(
    table,
    tensors,
    mu_low,
    mu_high,
    COLUMNS: tl.constexpr,
    LINES: tl.constexpr,
    DTYPE: tl.constexpr,
    NESTEROV: tl.constexpr,
    DENSE: tl.constexpr,
    TILE: tl.constexpr,
):
    """m = mu m + g, v = v + m, or Nesterov's m = mu (m + g), v = v + m + g; with DENSE, v becomes what is added to it.

    A line: first program, v, elements, m, gradient, and the bits of the gradient's factor (float64).
    """
    line, tile = locate(table, tensors, COLUMNS, LINES)
    where = tile * TILE + tl.arange(0, TILE)
    mask = where < tl.load(line + 2)
    v, m = address(line, 1, DTYPE) + where, address(line, 3, DTYPE) + where
    scale = tl.load(line + 5).to(tl.float64, bitcast=True).to(DTYPE)
    mu = real(mu_low, mu_high, DTYPE)
    g = tl.load(address(line, 4, DTYPE) + where, mask=mask, other=0.0) * scale
    momentum = tl.load(m, mask=mask, other=0.0)
    if NESTEROV:
        momentum = (momentum + g) * mu
    else:
        momentum = momentum * mu + g
    total = momentum
    if not DENSE:
        total = tl.load(v, mask=mask, other=0.0) + momentum
    if NESTEROV:
        total = total + g
    tl.store(m, momentum, mask=mask)
    tl.store(v, total, mask=mask)


@triton.jit(do_not_specialize=[*COEFFICIENTS, "k0", "k1", "start", "stride"])
def sample_keys(
    x,
    g,
    beta_low,
    beta_high,
    gamma_low,
    gamma_high,
    k0,
    k1,
    n,
    samples,
    start,
    stride,
    out,
    HAS_G: tl.constexpr,
    RANDOM: tl.constexpr,
    TILE: tl.constexpr,
):
    """Magnitudes of sampled elements: at a stride, or drawn."""
    sample = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = sample < samples
    if RANDOM:
        place = (draws(k0, k1, sample).to(tl.int64) * n) >> 32
    else:
        place = sample * stride + start
    v = source(x, g, beta_low, beta_high, gamma_low, gamma_high, place, mask, HAS_G)
    tl.store(out + sample, keys(v), mask=mask)


@triton.jit
def adapted(thresholds, hits, bounds, step, DTYPE: tl.constexpr):
    """The threshold of a step as sortable integer: the one before, lowered or raised if its hits ask for it.

    Also the one before, and its hits. `bounds`: fewest and most hits, and the bits of the two factors (float64).
    """
    before = tl.maximum(step - 1, 0)
    key = tl.load(thresholds + before)
    found = tl.load(hits + before)
    threshold = key.to(DTYPE, bitcast=True)
    lowered = threshold * tl.load(bounds + 2).to(tl.float64, bitcast=True).to(DTYPE)
    raised = threshold * tl.load(bounds + 3).to(tl.float64, bitcast=True).to(DTYPE)
    raised = tl.where(found > tl.load(bounds + 1), raised, threshold)
    threshold = tl.where(found < tl.load(bounds), lowered, raised)
    return tl.where(step > 0, threshold.to(key.dtype, bitcast=True), key), key, found


@triton.jit(do_not_specialize=[*COEFFICIENTS, "step"])
def count_hits(
    x,
    g,
    beta_low,
    beta_high,
    gamma_low,
    gamma_high,
    n,
    thresholds,
    hits,
    bounds,
    step,
    HAS_G: tl.constexpr,
    TILE: tl.constexpr,
):
    """How many magnitudes reach the threshold of this step, unless it is the one of the step before."""
    key, last, found = adapted(thresholds, hits, bounds, step, x.dtype.element_ty)
    first = tl.program_id(0) == 0
    tl.store(thresholds + step, key, mask=first)
    if (step > 0) & (key == last):
        tl.atomic_add(hits + step, found, mask=first)
    else:
        where = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
        mask = where < n
        v = source(x, g, beta_low, beta_high, gamma_low, gamma_high, where, mask, HAS_G)
        # A sum of integers does not depend on its order.
        tl.atomic_add(hits + step, tl.sum(((keys(v) >= key) & mask).to(tl.int32), axis=0).to(tl.int64))


@triton.jit(do_not_specialize=[*COEFFICIENTS, "step"])
def hit_keys(
    x,
    g,
    beta_low,
    beta_high,
    gamma_low,
    gamma_high,
    n,
    thresholds,
    hits,
    bounds,
    step,
    out,
    below,
    HAS_G: tl.constexpr,
    TILE: tl.constexpr,
):
    """Magnitudes that reach the threshold, and -1 for others; `below` receives the next smaller magnitude."""
    key, _, _ = adapted(thresholds, hits, bounds, step, x.dtype.element_ty)
    tl.store(below, key - 1, mask=tl.program_id(0) == 0)
    where = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = where < n
    found = keys(source(x, g, beta_low, beta_high, gamma_low, gamma_high, where, mask, HAS_G))
    tl.store(out + where, tl.where(found >= key, found, -1), mask=mask)
