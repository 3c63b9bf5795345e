"""Decoding for all tensors of a bucket and all ranks: by tensor and rank, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from torch import Tensor

from ..check import checked_flag
from ..wire import Payloads
from .blocks import block_add
from .cast import fp8_add
from .signs import onebit_add, scaled_sign_add, sign_vote
from .tables import natural_add
from .ternary import ternary_add

__all__ = [
    "block_combine_",
    "fp8_combine_",
    "natural_combine_",
    "onebit_combine_",
    "scaled_sign_combine_",
    "sign_combine_",
    "ternary_combine_",
]


def combine_each(
    add: Callable[..., None], outs: Sequence[Tensor], payloads: Payloads, divisor: float
) -> None:
    """Each of `outs` = the sum of what `add` decodes from its payloads, over `divisor`."""
    for out, of_ranks in zip(outs, payloads):
        out.zero_()
        for parts in of_ranks:
            add(out, *parts)
        if divisor != 1:
            out.div_(divisor)


def vote_each(
    vote: Callable[[Tensor, Sequence[Tensor], int], None],
    outs: Sequence[Tensor],
    payloads: Payloads,
    words: Sequence[int],
) -> None:
    """Each of `outs` = the majority of the ranks whose tensor is not zero."""
    for out, of_ranks, word in zip(outs, payloads, words):
        vote(out, [bits for bits, flag in of_ranks if checked_flag(flag)], word)


class BucketDecoders(NamedTuple):
    """The operations on a bucket, from a backend's decoders of one payload."""

    block_add: Callable[..., None]
    fp8_add: Callable[..., None]
    natural_add: Callable[..., None]
    onebit_add: Callable[..., None]
    scaled_sign_add: Callable[..., None]
    ternary_add: Callable[..., None]
    sign_vote: Callable[[Tensor, Sequence[Tensor], int], None]

    def block_combine_(
        self, outs: Sequence[Tensor], payloads: Payloads, divisor: float, block: int, levels: int, bits: int
    ) -> None:
        """Sums of `block_add` over ranks, over `divisor`."""
        add = partial(self.block_add, block=block, levels=levels, bits=bits)
        combine_each(add, outs, payloads, divisor)

    def fp8_combine_(self, outs: Sequence[Tensor], payloads: Payloads, divisor: float, block: int) -> None:
        """Sums of `fp8_add` over ranks, over `divisor`."""
        combine_each(partial(self.fp8_add, block=block), outs, payloads, divisor)

    def natural_combine_(self, outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
        """Sums of `natural_add` over ranks, over `divisor`."""
        combine_each(self.natural_add, outs, payloads, divisor)

    def onebit_combine_(self, outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
        """Sums of `onebit_add` over ranks, over `divisor`."""
        combine_each(self.onebit_add, outs, payloads, divisor)

    def scaled_sign_combine_(self, outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
        """Sums of `scaled_sign_add` over ranks, over `divisor`."""
        combine_each(self.scaled_sign_add, outs, payloads, divisor)

    def ternary_combine_(self, outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
        """Sums of `ternary_add` over ranks, over `divisor`."""
        combine_each(self.ternary_add, outs, payloads, divisor)

    def sign_combine_(self, outs: Sequence[Tensor], payloads: Payloads, words: Sequence[int]) -> None:
        """`sign_vote` of the ranks whose tensor is not zero, with each tensor's word."""
        vote_each(self.sign_vote, outs, payloads, words)


_decoders = BucketDecoders(
    block_add, fp8_add, natural_add, onebit_add, scaled_sign_add, ternary_add, sign_vote
)
block_combine_ = _decoders.block_combine_
fp8_combine_ = _decoders.fp8_combine_
natural_combine_ = _decoders.natural_combine_
onebit_combine_ = _decoders.onebit_combine_
scaled_sign_combine_ = _decoders.scaled_sign_combine_
sign_combine_ = _decoders.sign_combine_
ternary_combine_ = _decoders.ternary_combine_
