"""Selecting elements by magnitude, in order, and adding them back."""

# mypy: ignore-errors

import triton
import triton.language as tl

from .common import COEFFICIENTS, draws, keys, real, source


@triton.jit(do_not_specialize=COEFFICIENTS)
def form_keys(
    x,
    g,
    beta_low,
    beta_high,
    gamma_low,
    gamma_high,
    n,
    out,
    HAS_G: tl.constexpr,
    EF: tl.constexpr,
    TILE: tl.constexpr,
):
    """The magnitudes of v as sortable integers; with EF, x becomes v."""
    where = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = where < n
    v = source(x, g, beta_low, beta_high, gamma_low, gamma_high, where, mask, HAS_G)
    tl.store(out + where, keys(v), mask=mask)
    if EF and HAS_G:
        tl.store(x + where, v, mask=mask)


@triton.jit(do_not_specialize=COEFFICIENTS)
def select_count(
    x,
    g,
    beta_low,
    beta_high,
    gamma_low,
    gamma_high,
    n,
    least,
    above,
    ties,
    HAS_G: tl.constexpr,
    EF: tl.constexpr,
    TILE: tl.constexpr,
):
    """How many magnitudes of each tile are above `least`, and how many equal it; with EF, x becomes v."""
    tile = tl.program_id(0).to(tl.int64)
    where = tile * TILE + tl.arange(0, TILE)
    mask = where < n
    v = source(x, g, beta_low, beta_high, gamma_low, gamma_high, where, mask, HAS_G)
    key = keys(v)
    bound = tl.load(least)
    tl.store(above + tile, tl.sum(((key > bound) & mask).to(tl.int32), axis=0).to(tl.int64))
    tl.store(ties + tile, tl.sum(((key == bound) & mask).to(tl.int32), axis=0).to(tl.int64))
    if EF and HAS_G:
        tl.store(x + where, v, mask=mask)


@triton.jit(do_not_specialize=COEFFICIENTS)
def select_write(
    x,
    g,
    beta_low,
    beta_high,
    gamma_low,
    gamma_high,
    n,
    least,
    above,
    ties,
    allowed,
    index,
    values,
    HAS_G: tl.constexpr,
    TILE: tl.constexpr,
):
    """Indices and values of elements above `least`, and of the first `allowed` that equal it, in order.

    `above` and `ties` count those of earlier tiles, which gives each program its output position.
    """
    tile = tl.program_id(0).to(tl.int64)
    where = tile * TILE + tl.arange(0, TILE)
    mask = where < n
    v = source(x, g, beta_low, beta_high, gamma_low, gamma_high, where, mask, HAS_G)
    key = keys(v)
    bound = tl.load(least)
    quota = tl.load(allowed)
    before = tl.load(ties + tile)
    tie = ((key == bound) & mask).to(tl.int32)
    taken = (tie == 1) & (before + tl.cumsum(tie, axis=0) <= quota)
    chosen = ((key > bound) & mask) | taken
    one = chosen.to(tl.int32)
    rank = tl.load(above + tile) + tl.minimum(before, quota) + tl.cumsum(one, axis=0) - one
    tl.store(index + rank, where, mask=chosen)
    tl.store(values + rank, v, mask=chosen)


@triton.jit(do_not_specialize=["alpha_low", "alpha_high"])
def scatter_add(
    out, index, values, alpha_low, alpha_high, k, count, LIMITED: tl.constexpr, TILE: tl.constexpr
):
    """out[index] += alpha * values, for indices that all differ; with LIMITED, only of the first `count`."""
    where = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = where < k
    if LIMITED:
        mask = mask & (where < tl.load(count))
    place = tl.load(index + where, mask=mask, other=0)
    v = tl.load(out + place, mask=mask, other=0.0)
    step = tl.load(values + where, mask=mask, other=0.0).to(v.dtype) * real(alpha_low, alpha_high, v.dtype)
    tl.store(out + place, v + step, mask=mask)


@triton.jit
def strata(k0, k1, where, d, k):
    """The index drawn in each of `k` strata that split 0..d evenly, and the size of the stratum."""
    edge = where * d // k
    size = (where + 1) * d // k - edge
    return edge + ((draws(k0, k1, where).to(tl.int64) * size) >> 32), size


@triton.jit(do_not_specialize=[*COEFFICIENTS, "k0", "k1"])
def randomk_encode(
    x,
    g,
    beta_low,
    beta_high,
    gamma_low,
    gamma_high,
    k0,
    k1,
    n,
    k,
    values,
    SCALED: tl.constexpr,
    HAS_G: tl.constexpr,
    EF: tl.constexpr,
    TILE: tl.constexpr,
):
    """Values at the drawn indices; with EF, the residual is stored in x."""
    where = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = where < k
    place, size = strata(k0, k1, where, n, k)
    v = source(x, g, beta_low, beta_high, gamma_low, gamma_high, place, mask, HAS_G)
    sent = v
    if SCALED:
        sent = v * size.to(v.dtype)
    tl.store(values + where, sent, mask=mask)
    if EF:
        tl.store(x + place, v - sent, mask=mask)


@triton.jit(do_not_specialize=["k0", "k1", "alpha_low", "alpha_high"])
def randomk_add(out, values, k0, k1, alpha_low, alpha_high, n, k, TILE: tl.constexpr):
    """out += alpha * values at the drawn indices."""
    where = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = where < k
    place, _ = strata(k0, k1, where, n, k)
    v = tl.load(out + place, mask=mask, other=0.0)
    step = tl.load(values + where, mask=mask, other=0.0).to(v.dtype) * real(alpha_low, alpha_high, v.dtype)
    tl.store(out + place, v + step, mask=mask)
