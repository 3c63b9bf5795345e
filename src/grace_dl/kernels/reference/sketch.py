"""SketchML's quantile buckets (Jiang 2018), each decoded to its mean; plain torch, the oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from ..check import broken, payload_part
from .bits import pack, packed_bytes
from .indices import flags
from .sparse import formed

__all__ = ["sketch_add", "sketch_encode"]

SAMPLE = 4096
"""Elements looked at to place the boundaries."""


def sketch_encode(
    x: Tensor, g: Tensor | None, beta: float, gamma: float, ef: bool, bits: int, codes: Tensor, means: Tensor
) -> None:
    """Code each element by the quantile bucket it falls in; boundaries come from a strided sample."""
    v = formed(x, g, beta, gamma, ef)
    d, quantiles = v.numel(), 1 << bits
    sample = v[:: max(1, d // SAMPLE)].sort().values
    places = torch.arange(1, quantiles, device=v.device) * sample.numel() // quantiles
    code = torch.bucketize(v, sample[places], right=True)
    means.copy_(_means(v, code, quantiles))
    codes.copy_(pack(code, bits))
    if ef:
        v -= means[code]


def _means(v: Tensor, code: Tensor, quantiles: int) -> Tensor:
    """The mean of each bucket. Sums are taken in integers, which add up alike in any order and on any device."""
    peak = v.abs().max().double()
    if not bool(peak.isfinite()):
        return torch.full((quantiles,), float("nan"), dtype=torch.float64, device=v.device)
    exponent = int(torch.frexp(peak).exponent)
    shift = min(61 - v.numel().bit_length() - exponent, 1000)
    # Two factors, because 2^shift alone may exceed float64's range though the product does not.
    fixed = torch.round(v.double() * 2.0 ** (shift // 2) * 2.0 ** (shift - shift // 2)).to(torch.int64)
    sums = torch.zeros(quantiles, dtype=torch.int64, device=v.device).scatter_add_(0, code, fixed)
    sizes = torch.bincount(code, minlength=quantiles)
    return sums.double() / sizes.clamp(min=1) * 2.0 ** -(shift // 2) * 2.0 ** -(shift - shift // 2)


def sketch_add(out: Tensor, codes: Tensor, means: Tensor, bits: int, alpha: float = 1.0) -> None:
    """`out += alpha * decoded`."""
    payload_part(codes, torch.uint8, packed_bytes(out.numel(), bits))
    payload_part(means, out.dtype, 1 << bits)
    if not bool(means.isfinite().all()):
        raise broken("a bucket's mean is not finite")
    out += means[flags(codes, bits, out.numel())] * alpha
