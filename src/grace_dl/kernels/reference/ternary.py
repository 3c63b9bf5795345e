"""TernGrad: three values per element, five elements per byte."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..check import broken, payload_part, scale_part, working
from ..source import Source
from ..wire import TRIT_GROUP, trit_bytes
from .basic import compensated
from .blocks import squares_factor
from .randomness import uniforms
from .reduce import tree_sum

__all__ = ["ternary_add", "ternary_encode"]


def _weights(device: torch.device) -> Tensor:
    """The powers of three, made on the device: copying them there would stop the host."""
    return (3 ** torch.arange(5, device=device)).view(5, 1)


def trits_pack(trits: Tensor) -> Tensor:
    """Trits 0, 1, 2 as bytes; the last group is as narrow as it can be, its missing trits are 0."""
    n = trits.numel()
    full = n - n % (5 * TRIT_GROUP)
    rest = trits[full:]
    width = trit_bytes(rest.numel())
    padded = torch.nn.functional.pad(rest, (0, 5 * width - rest.numel()))
    weights = _weights(trits.device)
    head = (trits[:full].view(-1, 5, TRIT_GROUP) * weights).sum(1).view(-1)
    tail = (padded.view(5, width) * weights).sum(0)
    return torch.cat([head, tail]).to(torch.uint8)


def trits_unpack(data: Tensor, n: int) -> Tensor:
    """The first `n` trits of `data`, as int64."""
    divisors = _weights(data.device)
    whole = n // (5 * TRIT_GROUP) * TRIT_GROUP
    head = data[:whole].long().view(-1, 1, TRIT_GROUP) // divisors % 3
    tail = data[whole:].long().view(1, -1) // divisors % 3
    return torch.cat([head.view(-1), tail.view(-1)])[:n]


def ternary_encode(source: Source, clip: float, word: int, codes: Tensor, scale: Tensor) -> None:
    """Keep the sign with probability abs(c) / s, where c is v clipped at `clip` sigma and s its absmax.

    Wen et al. 2017, eq. 1, 2 and 9. sigma is taken about zero, not about the mean: for gradients the two agree, and
    a tensor of equal elements is not clipped to zero.
    """
    x = source.x
    working(x)
    n = x.numel()
    payload_part(codes, torch.uint8, trit_bytes(n))
    payload_part(scale, x.dtype, 1)
    v = compensated(source)
    top = v.abs().max()
    factor = squares_factor(top)
    y = v.double() * factor
    sigma = math.sqrt(tree_sum(y * y) / n) / factor
    s = torch.minimum((clip * sigma).to(x.dtype), top)
    # A uniform number below 1 times s is below s, so elements that reach s are always kept.
    kept = uniforms(word, n, v) * s < v.abs()
    trit = torch.where(v < 0, -1, 1) * kept
    codes.copy_(trits_pack(trit + 1))
    scale.fill_(s)
    if source.leaves("residual"):
        x.view(-1).copy_(v - trit.to(x.dtype) * s)


def ternary_parts(out: Tensor, codes: Tensor, scale: Tensor) -> None:
    """Raise unless codes and scale are those of `out`; their contents are checked on the host only (`check.shown`)."""
    working(out)
    payload_part(codes, torch.uint8, trit_bytes(out.numel()))
    scale_part(scale, out.dtype)
    if out.is_cpu and bool((codes > 242).any()):
        raise broken(f"a byte of five trits is {int(codes.max())}, above 242")


def ternary_add(out: Tensor, codes: Tensor, scale: Tensor) -> None:
    """out += trit * scale."""
    ternary_parts(out, codes, scale)
    out.view(-1).add_((trits_unpack(codes, out.numel()) - 1).to(out.dtype) * scale)
