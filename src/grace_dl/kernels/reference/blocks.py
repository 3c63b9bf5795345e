"""Stochastic rounding to a few levels with one scale per block: int8, int4, QSGD."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..check import broken, payload_part, working
from ..source import Source
from ..wire import blocks, packed_bytes
from .basic import compensated, safe
from .bits import pack, unpack
from .randomness import uniforms
from .reduce import halve

__all__ = ["block_add", "block_encode"]

# Squares of float64 numbers in this range neither overflow nor underflow.
BIG, SMALL = 2.0**500, 2.0**-500


def squares_factor(top: Tensor) -> Tensor:
    """A power of two that scales numbers up to `top` into the range of safe squares; 1 if they already are."""
    if top.dtype != torch.float64:
        return torch.ones_like(top, dtype=torch.float64)
    exponent = torch.frexp(top)[1].clamp(-1000, 1000)
    unsafe = (top > BIG) | ((top < SMALL) & (top > 0))
    return torch.where(unsafe, torch.ldexp(torch.ones_like(top), -exponent), 1.0)


def _sqrt(values: Tensor) -> Tensor:
    """Correctly rounded square roots: torch's of float64 may be off by one in the last place."""
    return torch.from_numpy(np.sqrt(values.cpu().numpy())).to(values.device)


def _norms(rows: Tensor, top: Tensor) -> Tensor:
    """The Euclidean norm of each row: at least its absmax, at most the largest finite number."""
    width = 1 << max(0, rows.shape[1] - 1).bit_length()
    factor = squares_factor(top)
    y = pad(rows.double() * factor[:, None], (0, width - rows.shape[1]))
    norm = (_sqrt(halve(y * y)) / factor).clamp(max=torch.finfo(rows.dtype).max)
    return torch.maximum(norm.to(rows.dtype), top)


TINY = {torch.float32: (2.0**-60, 2.0**64), torch.float64: (2.0**-500, 2.0**512)}
"""Scales below the first number are multiplied by the second during the computation."""


def _lifts(scales: Tensor) -> Tensor:
    """The power of two that scales a block up: 1 unless its numbers are so small that inverses overflow."""
    below, factor = TINY[scales.dtype]
    return torch.where(scales < below, factor, torch.ones_like(scales))


def _steps(scales: Tensor, levels: int, lifts: Tensor) -> Tensor:
    """The distance between two levels in each scaled block; `levels` times it is finite."""
    step = (scales * lifts) / levels
    return torch.where(torch.isinf(step * levels), torch.nextafter(step, torch.zeros_like(step)), step)


def _decoded(q: Tensor, scales: Tensor, block: int, levels: int) -> Tensor:
    lifts = _lifts(scales)
    step = _steps(scales, levels, lifts).repeat_interleave(block)[: q.numel()]
    return (q * step) * (1 / lifts).repeat_interleave(block)[: q.numel()]


def block_encode(
    source: Source, block: int, levels: int, bits: int, norm: str, word: int, codes: Tensor, scales: Tensor
) -> None:
    """Round abs(v) * (levels / scale) up or down at random, without bias; codes are q + levels in `bits` bits.

    Alistarh et al. 2017, eq. 3.1, with the block's Euclidean norm ("l2") or absmax ("max") as the scale.
    """
    x = source.x
    working(x)
    n = x.numel()
    payload_part(codes, torch.uint8, packed_bytes(n, bits))
    payload_part(scales, x.dtype, blocks(n, block))
    v = compensated(source)
    rows = pad(v, (0, -n % block)).view(-1, block)
    top = rows.abs().amax(1)
    scale = _norms(rows, top) if norm == "l2" else top
    lifts = _lifts(scale)
    # Not `levels / scale`, which multiplies by a reciprocal that may be subnormal.
    inverse = torch.full_like(scale, levels) / safe(scale * lifts)
    y = ((rows.abs() * lifts[:, None]) * inverse[:, None]).clamp(max=levels).view(-1)[:n]
    whole = y.floor()
    q = whole + (uniforms(word, n, v) < y - whole)
    q = torch.where(v < 0, -q, q).to(torch.int64)
    codes.copy_(pack(q + levels, bits))
    scales.copy_(scale)
    if source.leaves("residual"):
        x.view(-1).copy_(v - _decoded(q.to(x.dtype), scale, block, levels))


def block_parts(out: Tensor, codes: Tensor, scales: Tensor, block: int, bits: int) -> None:
    """Raise unless codes and scales are those of `out`; scales are checked on the host only (`check.shown`)."""
    working(out)
    n = out.numel()
    payload_part(codes, torch.uint8, packed_bytes(n, bits))
    payload_part(scales, out.dtype, blocks(n, block))
    if out.is_cpu and not bool(((scales >= 0) & torch.isfinite(scales)).all()):
        raise broken("a block's scale is negative or not finite")


def block_codes(codes: Tensor, n: int, levels: int, bits: int) -> Tensor:
    """The codes of `n` elements; checked on the host only."""
    code = unpack(codes, bits, n)
    if codes.is_cpu and bool((code > 2 * levels).any()):
        raise broken(f"a code is {int(code.max())}, above {2 * levels}")
    return code


def block_add(out: Tensor, codes: Tensor, scales: Tensor, block: int, levels: int, bits: int) -> None:
    """out += q * (scale / levels)."""
    block_parts(out, codes, scales, block, bits)
    q = (block_codes(codes, out.numel(), levels, bits) - levels).to(out.dtype)
    out.view(-1).add_(_decoded(q, scales, block, levels))
