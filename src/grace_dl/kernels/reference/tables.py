"""One byte per element: Dettmers' dynamic tree, and natural compression."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..check import broken, payload_part, scale_part, working
from ..source import Source
from ..wire import NATURAL_BLOCK, NATURAL_EXPONENTS, blocks, tree_magnitudes
from .basic import compensated, safe
from .randomness import draws

__all__ = ["natural_add", "natural_encode", "u8bit_add", "u8bit_encode"]


@functools.cache
def tree(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The magnitudes, and the midpoints between neighbours."""
    exact = torch.tensor(tree_magnitudes(), dtype=torch.float64)
    middle = (exact[1:] + exact[:-1]) / 2
    return exact.to(dtype).to(device), middle.to(dtype).to(device)


def u8bit_encode(source: Source, codes: Tensor, scale: Tensor) -> None:
    """The nearest magnitude of the tree for abs(v) / absmax, the sign in the upper bit."""
    x = source.x
    working(x)
    payload_part(codes, torch.uint8, x.numel())
    payload_part(scale, x.dtype, 1)
    v = compensated(source)
    values, middle = tree(x.dtype, x.device)
    top = v.abs().max()
    code = torch.searchsorted(middle, v.abs() / safe(top))
    codes.copy_(code + 128 * (v < 0))
    scale.fill_(top)
    if source.leaves("residual"):
        magnitude = values[code]
        x.view(-1).copy_(v - torch.where(v < 0, -magnitude, magnitude) * top)


def u8bit_add(out: Tensor, codes: Tensor, scale: Tensor) -> None:
    """out += the tree's value times the scale."""
    working(out)
    payload_part(codes, torch.uint8, out.numel())
    scale_part(scale, out.dtype)
    values, _ = tree(out.dtype, out.device)
    both = torch.cat([values, -values])
    out.view(-1).add_(both[codes.long()] * scale)


def _power(exponents: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.ldexp(torch.ones_like(exponents, dtype=torch.float64), exponents).to(dtype)


def _scaled_up(rows: Tensor, exponents: Tensor) -> Tensor:
    """Each row times its power of two, in three factors: each is in range even where their product is not."""
    a = torch.div(exponents, 3, rounding_mode="trunc")
    b = torch.div(exponents - a, 2, rounding_mode="trunc")
    for part in (a, b, exponents - a - b):
        rows = rows * _power(part, rows.dtype)[:, None]
    return rows


def natural_encode(source: Source, word: int, codes: Tensor, bases: Tensor) -> None:
    """Round abs(v) to one of the two powers of two around it, without bias (Horvath et al. 2019, definition 2.1).

    Code c of 1…127 means 2**(base - 127 + c), 0 means zero; values below the smallest power are rounded to it or to
    zero. A block is first scaled so that its base becomes 127; random bits added to the mantissa of a float32 then
    carry into its exponent with exactly the right probability, and subnormal numbers need no special case.
    """
    x = source.x
    working(x)
    n = x.numel()
    payload_part(codes, torch.uint8, n)
    payload_part(bases, torch.int16, blocks(n, NATURAL_BLOCK))
    v = compensated(source)
    rows = pad(v.abs(), (0, -n % NATURAL_BLOCK)).view(-1, NATURAL_BLOCK)
    top = rows.amax(1)
    exponents = torch.frexp(top)[1].clamp(max=NATURAL_EXPONENTS[x.dtype][1])
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
    if source.leaves("residual"):
        x.view(-1).copy_(v - _powers_of_two(code, exponents, x.dtype))


def _powers_of_two(code: Tensor, bases: Tensor, dtype: torch.dtype) -> Tensor:
    bits = ((code & 127) << 23) | ((code >> 7) << 31)
    bits = torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32)
    units = _power(bases.to(torch.int32), dtype).repeat_interleave(NATURAL_BLOCK)[: code.numel()]
    return bits.view(torch.float32).to(dtype) * units


def natural_parts(out: Tensor, codes: Tensor, bases: Tensor) -> None:
    """Raise unless codes and bases are those of `out`; their contents are checked on the host only (`check.shown`)."""
    working(out)
    n = out.numel()
    payload_part(codes, torch.uint8, n)
    payload_part(bases, torch.int16, blocks(n, NATURAL_BLOCK))
    low, high = NATURAL_EXPONENTS[out.dtype]
    if out.is_cpu and bool(((bases < low) | (bases > high)).any()):
        raise broken(f"the largest exponent of a block is outside {low}…{high}")


def natural_add(out: Tensor, codes: Tensor, bases: Tensor) -> None:
    """out += the signed powers of two."""
    natural_parts(out, codes, bases)
    out.view(-1).add_(_powers_of_two(codes.long(), bases, out.dtype))
