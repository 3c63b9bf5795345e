"""Decoding for all tensors of a bucket and all ranks: by tensor and rank, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from ..check import checked_flag
from ..wire import Payloads
from .blocks import block_add
from .cast import fp8_add
from .signs import onebit_add, scaled_sign_add, sign_vote
from .tables import natural_add, u8bit_add
from .ternary import ternary_add

__all__ = [
    "block_combine_",
    "fp8_combine_",
    "natural_combine_",
    "onebit_combine_",
    "scaled_sign_combine_",
    "sign_combine_",
    "ternary_combine_",
    "u8bit_combine_",
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


def block_combine_(
    outs: Sequence[Tensor], payloads: Payloads, divisor: float, block: int, levels: int, bits: int
) -> None:
    """Sums of `block_add` over ranks, over `divisor`."""
    combine_each(partial(block_add, block=block, levels=levels, bits=bits), outs, payloads, divisor)


def fp8_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float, block: int) -> None:
    """Sums of `fp8_add` over ranks, over `divisor`."""
    combine_each(partial(fp8_add, block=block), outs, payloads, divisor)


def natural_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
    """Sums of `natural_add` over ranks, over `divisor`."""
    combine_each(natural_add, outs, payloads, divisor)


def onebit_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
    """Sums of `onebit_add` over ranks, over `divisor`."""
    combine_each(onebit_add, outs, payloads, divisor)


def scaled_sign_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
    """Sums of `scaled_sign_add` over ranks, over `divisor`."""
    combine_each(scaled_sign_add, outs, payloads, divisor)


def ternary_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
    """Sums of `ternary_add` over ranks, over `divisor`."""
    combine_each(ternary_add, outs, payloads, divisor)


def u8bit_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
    """Sums of `u8bit_add` over ranks, over `divisor`."""
    combine_each(u8bit_add, outs, payloads, divisor)


def sign_combine_(outs: Sequence[Tensor], payloads: Payloads, words: Sequence[int]) -> None:
    """`sign_vote` of the ranks whose tensor is not zero, with each tensor's word."""
    vote_each(sign_vote, outs, payloads, words)
