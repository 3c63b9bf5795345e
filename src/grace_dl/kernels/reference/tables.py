"""One byte an element: Dettmers' dynamic tree, and natural compression."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..check import broken, checked_scale, payload_part, working
from .basic import compensated, safe
from .randomness import draws

__all__ = ["NATURAL_BLOCK", "natural_add", "natural_encode", "tree_magnitudes", "u8bit_add", "u8bit_encode"]


@functools.cache
def tree_magnitudes() -> tuple[float, ...]:
    """The 128 magnitudes of Dettmers 2015 (section 3, dynamic tree quantisation) for 7 bits.

    The leading one among the bits chooses a decade, 1e-6 to 1; the bits after it divide the decade evenly. Each
    interval is represented by its upper end, so that the largest element of a tensor is exact.
    """
    values = [0.0]
    for place in range(7):
        decade = 10.0 ** (place - 6)
        values += [decade * (0.1 + 0.9 * (f + 1) / 2**place) for f in range(2**place)]
    return tuple(values)


@functools.cache
def tree(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The magnitudes, and the middles between neighbours."""
    exact = torch.tensor(tree_magnitudes(), dtype=torch.float64)
    middle = (exact[1:] + exact[:-1]) / 2
    return exact.to(dtype).to(device), middle.to(dtype).to(device)


def u8bit_encode(
    x: Tensor, g: Tensor | None, beta: float, gamma: float, ef: bool, codes: Tensor, scale: Tensor
) -> None:
    """The nearest magnitude of the tree for abs(v) / absmax, the sign in the upper bit."""
    working(x)
    payload_part(codes, torch.uint8, x.numel())
    payload_part(scale, x.dtype, 1)
    v = compensated(x, g, beta, gamma)
    values, middle = tree(x.dtype, x.device)
    top = v.abs().max()
    code = torch.searchsorted(middle, v.abs() / safe(top))
    codes.copy_(code + 128 * (v < 0))
    scale.fill_(top)
    if ef:
        magnitude = values[code]
        x.view(-1).copy_(v - torch.where(v < 0, -magnitude, magnitude) * top)


def u8bit_add(out: Tensor, codes: Tensor, scale: Tensor) -> None:
    """out += the tree's value times the scale."""
    working(out)
    payload_part(codes, torch.uint8, out.numel())
    checked_scale(scale, out.dtype)
    values, _ = tree(out.dtype, out.device)
    both = torch.cat([values, -values])
    out.view(-1).add_(both[codes.long()] * scale)


NATURAL_BLOCK = 4096
"""Elements that share a largest exponent in natural compression."""

EXPONENTS = {torch.float32: (-148, 127), torch.float64: (-1073, 1023)}
"""The exponents a block's largest power of two may have."""


def _power(exponents: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.ldexp(torch.ones_like(exponents, dtype=torch.float64), exponents).to(dtype)


def _scaled_up(rows: Tensor, exponents: Tensor) -> Tensor:
    """Each row times its power of two, in three factors: each is in range even where their product is not."""
    a = torch.div(exponents, 3, rounding_mode="trunc")
    b = torch.div(exponents - a, 2, rounding_mode="trunc")
    for part in (a, b, exponents - a - b):
        rows = rows * _power(part, rows.dtype)[:, None]
    return rows


def natural_encode(
    x: Tensor,
    g: Tensor | None,
    beta: float,
    gamma: float,
    ef: bool,
    word: int,
    codes: Tensor,
    bases: Tensor,
) -> None:
    """Round abs(v) to one of the two powers of two around it, without bias (Horvath et al. 2019, definition 2.1).

    Code c of 1…127 stands for 2**(base - 127 + c), 0 for zero; what lies below the smallest power is rounded to it
    or to zero. A block is first scaled so that its base becomes 127; then the random bits, added to the mantissa of a
    float32, carry into its exponent with just the right probability, and no subnormal needs care.
    """
    working(x)
    n = x.numel()
    payload_part(codes, torch.uint8, n)
    payload_part(bases, torch.int16, -(-n // NATURAL_BLOCK))
    v = compensated(x, g, beta, gamma)
    rows = pad(v.abs(), (0, -n % NATURAL_BLOCK)).view(-1, NATURAL_BLOCK)
    top = rows.amax(1)
    exponents = torch.frexp(top)[1].clamp(max=EXPONENTS[x.dtype][1])
    exponents = torch.where((top > 0) & torch.isfinite(top), exponents, 0)
    y = _scaled_up(rows, 127 - exponents).view(-1)[:n].to(torch.float32)
    random = draws(word, torch.arange(n, device=x.device))
    bits = y.view(torch.int32).long()
    code = ((bits + (random >> 9)) >> 23) - 127
    low = (random >> 8).to(torch.float32) * 2.0**-24 < y * 0.5
    code = torch.where(y < 2.0, low.long(), code).clamp(0, 127)
    code = code + 128 * (v < 0)
    codes.copy_(code)
    bases.copy_(exponents)
    if ef:
        x.view(-1).copy_(v - _powers_of_two(code, exponents, x.dtype))


def _powers_of_two(code: Tensor, bases: Tensor, dtype: torch.dtype) -> Tensor:
    bits = ((code & 127) << 23) | ((code >> 7) << 31)
    bits = torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32)
    units = _power(bases.to(torch.int32), dtype).repeat_interleave(NATURAL_BLOCK)[: code.numel()]
    return bits.view(torch.float32).to(dtype) * units


def natural_add(out: Tensor, codes: Tensor, bases: Tensor) -> None:
    """out += the signed powers of two."""
    working(out)
    n = out.numel()
    payload_part(codes, torch.uint8, n)
    payload_part(bases, torch.int16, -(-n // NATURAL_BLOCK))
    low, high = EXPONENTS[out.dtype]
    if not bool(((bases >= low) & (bases <= high)).all()):
        raise broken(f"the largest exponent of a block is outside {low}…{high}")
    out.view(-1).add_(_powers_of_two(codes.long(), bases, out.dtype))
