"""SketchML's quantile buckets (Jiang 2018), each decoded to its mean; plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..check import broken, payload_part, shown
from ..source import Source
from ..wire import packed_bytes
from .basic import formed
from .bits import pack, unpack_checked
from .reduce import BLOCK as FAN
from .reduce import halve

__all__ = ["sketch_add", "sketch_encode"]

SAMPLE = 4096
"""Elements sampled to choose the boundaries."""

BLOCK = 8192
"""Elements per block; sums within a block are in integers, sums over blocks in floating point."""

PRECISION = 35
"""Bits of a number that contribute to its bucket's mean, relative to the largest number in the bucket."""

EXPONENTS = (-988, 1024)
"""The range of exponents e of a bucket's numbers; 2^(35 - e) is finite for them."""


def sketch_encode(source: Source, bits: int, codes: Tensor, means: Tensor) -> None:
    """Code each element by the quantile bucket it falls in; boundaries come from a strided sample."""
    v, ef = formed(source)
    d, quantiles = v.numel(), 1 << bits
    sample = v[:: max(1, d // SAMPLE)].sort().values
    places = torch.arange(1, quantiles, device=v.device) * sample.numel() // quantiles
    boundaries = sample[places]
    code = torch.bucketize(v, boundaries, right=True)
    means.copy_(_means(v, code, boundaries.double()))
    codes.copy_(pack(code, bits))
    if ef:
        v -= means[code]


def _means(v: Tensor, code: Tensor, boundaries: Tensor) -> Tensor:
    """The mean of each bucket. Sums within a block are in integers, so their order and the device do not matter."""
    d, quantiles = v.numel(), boundaries.numel() + 1
    if not bool(v.isfinite().all()):
        return torch.full((quantiles,), float("nan"), dtype=torch.float64, device=v.device)
    rows = pad(v.double(), (0, -d % BLOCK)).view(-1, BLOCK)
    exponents = _exponents(rows, boundaries)
    place = torch.arange(d, device=v.device) // BLOCK * quantiles + code
    fixed = torch.round(v.double() * _power(PRECISION - exponents).view(-1)[place]).to(torch.int64)
    sums = torch.zeros(exponents.numel(), dtype=torch.int64, device=v.device).scatter_add_(0, place, fixed)
    # Scaled down by this power of two, the sum over all blocks stays in range.
    spare = d.bit_length()
    y = (sums.view_as(exponents).double() * _power(exponents - PRECISION - spare)).t()
    while True:
        y = halve(pad(y, (0, -y.shape[1] % FAN)).view(quantiles, -1, FAN))
        if y.shape[1] == 1:
            break
    sizes = torch.bincount(code, minlength=quantiles).clamp(min=1)
    most = torch.finfo(v.dtype).max
    return (y.view(-1) / sizes * 2.0**spare).clamp(-most, most)


def _exponents(rows: Tensor, boundaries: Tensor) -> Tensor:
    """For each block and bucket an e such that the bucket's elements there are at most 2^e in magnitude.

    Inner buckets are limited by their boundaries; the outermost ones by the extremes of the block.
    """
    top, bottom = rows.amax(1).clamp(min=0), rows.amin(1).clamp(max=0).neg()
    both = torch.maximum(top, bottom)
    first = bottom if float(boundaries[0]) <= 0 else both
    last = top if float(boundaries[-1]) >= 0 else both
    inner = torch.maximum(boundaries[:-1].abs(), boundaries[1:].abs()).expand(rows.shape[0], -1)
    limits = torch.cat([first[:, None], inner, last[:, None]], 1)
    return torch.frexp(limits).exponent.clamp(*EXPONENTS)


def _power(exponents: Tensor) -> Tensor:
    return torch.ldexp(torch.ones_like(exponents, dtype=torch.float64), exponents)


def sketch_add(out: Tensor, codes: Tensor, means: Tensor, bits: int, alpha: float = 1.0) -> None:
    """`out += alpha * decoded`."""
    payload_part(codes, torch.uint8, packed_bytes(out.numel(), bits))
    payload_part(means, out.dtype, 1 << bits)
    if shown(~means.isfinite()):
        raise broken("a bucket's mean is not finite")
    out.view(-1).add_(means[unpack_checked(codes, bits, out.numel())] * alpha)
