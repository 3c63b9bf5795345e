"""One bit per element: plain signs and their majority vote, signs with a scale, and 1-bit SGD.

A set bit means negative; bits fill bytes from the lowest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..check import checked_flag, checked_means, payload_part, scale_part, working
from ..source import Source
from ..wire import packed_bytes
from .basic import compensated
from .bits import pack, unpack
from .randomness import draws
from .reduce import tree_sum

__all__ = [
    "onebit_add",
    "onebit_encode",
    "scaled_sign_add",
    "scaled_sign_encode",
    "settled",
    "sign_add",
    "sign_encode",
    "sign_vote",
]


def sign_encode(source: Source, word: int, bits: Tensor, flag: Tensor) -> None:
    """The sign of v, random for zero elements. flag = 0 means that all elements are zero."""
    x = source.x
    working(x)
    n = x.numel()
    payload_part(bits, torch.uint8, packed_bytes(n, 1))
    payload_part(flag, torch.uint8, 1)
    v = compensated(source)
    coin = draws(word, torch.arange(n, device=x.device)) >> 31 == 1
    bits.copy_(pack((v < 0) | ((v == 0) & coin), 1))
    flag.copy_((v != 0).any())
    if source.leaves("compensated"):
        x.view(-1).copy_(v)


def _negative(bits: Tensor, n: int) -> Tensor:
    return unpack(bits, 1, n) == 1


def sign_add(out: Tensor, bits: Tensor, flag: Tensor) -> None:
    """out += 1 or -1; unchanged if the flag is zero."""
    working(out)
    n = out.numel()
    payload_part(bits, torch.uint8, packed_bytes(n, 1))
    if checked_flag(flag):
        out.view(-1).add_(torch.where(_negative(bits, n), -1.0, 1.0).to(out.dtype))


def sign_vote(out: Tensor, ballots: Sequence[Tensor], word: int) -> None:
    """out = the majority sign of the ballots; ties take a random sign that depends only on `word`."""
    working(out)
    n = out.numel()
    votes = torch.zeros(n, dtype=torch.int64, device=out.device)
    for bits in ballots:
        payload_part(bits, torch.uint8, packed_bytes(n, 1))
        votes += 1 - 2 * unpack(bits, 1, n)
    coin = draws(word, torch.arange(n, device=out.device)) >> 31 == 1
    negative = (votes < 0) | ((votes == 0) & coin)
    out.view(-1).copy_(torch.where(negative, -1.0, 1.0) if ballots else votes)


def _mean(values: Tensor, count: int) -> Tensor:
    """Mean by the fixed tree, in the dtype of `values`.

    Values are scaled down by a power of two, so that sums of eight do not overflow their own precision. A sum that
    overflows float64 is repeated with a smaller scale.
    """
    for factor in (2.0**-3, 2.0**-67):
        total = tree_sum(values * factor)
        if math.isfinite(total):
            break
    return torch.tensor(total / count / factor, dtype=torch.float64).to(values.dtype).to(values.device)


def settled(x: Tensor, owed: Tensor) -> Tensor:
    """x minus its deferred part: owed[0] where x is negative, owed[1] elsewhere."""
    payload_part(owed, x.dtype, 2)
    return x - torch.where(x < 0, owed[0], owed[1])


def _without_owed(source: Source) -> tuple[Tensor, Tensor | None]:
    """The input, and where to write the sent values if x becomes the deferred residual."""
    if not source.leaves("deferred"):
        return compensated(source), None
    assert source.owed is not None
    return compensated(source._replace(x=settled(source.x, source.owed))), source.owed


def scaled_sign_encode(source: Source, bits: Tensor, scale: Tensor) -> None:
    """Signs, and the mean of abs(v) (Karimireddy et al. 2019, algorithm 1)."""
    x = source.x
    working(x)
    n = x.numel()
    payload_part(bits, torch.uint8, packed_bytes(n, 1))
    payload_part(scale, x.dtype, 1)
    v, owed = _without_owed(source)
    mean = _mean(v.abs(), n)
    bits.copy_(pack(v < 0, 1))
    scale.fill_(mean)
    if owed is not None:
        x.view(-1).copy_(v)
        owed.copy_(torch.stack([-mean, mean]))


def scaled_sign_add(out: Tensor, bits: Tensor, scale: Tensor) -> None:
    """out += scale or -scale."""
    working(out)
    n = out.numel()
    payload_part(bits, torch.uint8, packed_bytes(n, 1))
    scale_part(scale, out.dtype)
    out.view(-1).add_(torch.where(_negative(bits, n), -scale, scale))


def onebit_encode(source: Source, bits: Tensor, means: Tensor) -> None:
    """Signs, and the means of the negative and of the other elements (Seide et al. 2014, section 3.2)."""
    x = source.x
    working(x)
    n = x.numel()
    payload_part(bits, torch.uint8, packed_bytes(n, 1))
    payload_part(means, x.dtype, 2)
    v, owed = _without_owed(source)
    negative = v < 0
    below = int(negative.sum())
    low = _mean(torch.where(negative, v, 0.0), max(below, 1))
    high = _mean(torch.where(negative, 0.0, v), max(n - below, 1))
    bits.copy_(pack(negative, 1))
    means.copy_(torch.stack([low, high]))
    if owed is not None:
        x.view(-1).copy_(v)
        owed.copy_(means)


def onebit_add(out: Tensor, bits: Tensor, means: Tensor) -> None:
    """out += the mean selected by each bit."""
    working(out)
    n = out.numel()
    payload_part(bits, torch.uint8, packed_bytes(n, 1))
    payload_part(means, out.dtype, 2)
    if means.is_cpu:
        checked_means(means, out.dtype)
    out.view(-1).add_(torch.where(_negative(bits, n), means[0], means[1]))
