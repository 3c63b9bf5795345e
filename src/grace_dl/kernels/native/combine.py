"""Compiled decoders for all ranks: one call a tensor, in one pass over its memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import grace_dl._native as _native

from .. import wire
from ..check import broken, checked_means, checked_scale
from ..reference import combine as reference
from ..wire import Payloads
from .pointer import address, native_dtype, part_address, threads
from .signs import sign_vote
from .tables import checked_bases, tree

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


def _supported(outs: Sequence[Tensor]) -> bool:
    return all(native_dtype(out) is not None for out in outs)


def _target(out: Tensor) -> tuple[bool, int, int]:
    """The leading arguments of every call."""
    return out.dtype is torch.float64, address(out, out.dtype, out.numel()), out.numel()


def _codes(of_ranks: Sequence[Sequence[Tensor]], nbytes: int) -> list[int]:
    return [part_address(parts[0], torch.uint8, nbytes) for parts in of_ranks]


def block_combine_(
    outs: Sequence[Tensor], payloads: Payloads, divisor: float, block: int, levels: int, bits: int
) -> None:
    if not _supported(outs):
        return reference.block_combine_(outs, payloads, divisor, block, levels, bits)
    for out, of_ranks in zip(outs, payloads):
        n = out.numel()
        codes = _codes(of_ranks, wire.packed_bytes(n, bits))
        scales = [part_address(parts[1], out.dtype, wire.blocks(n, block)) for parts in of_ranks]
        target = _target(out)
        if not _native.block_combine(*target, block, levels, bits, codes, scales, divisor, threads()):
            raise broken(f"a block's scale is negative or not finite, or a code is above {2 * levels}")


def fp8_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float, block: int) -> None:
    if not _supported(outs):
        return reference.fp8_combine_(outs, payloads, divisor, block)
    for out, of_ranks in zip(outs, payloads):
        n = out.numel()
        codes = _codes(of_ranks, n)
        scales = [part_address(parts[1], out.dtype, wire.blocks(n, block)) for parts in of_ranks]
        if not _native.fp8_combine(*_target(out), block, codes, scales, divisor, threads()):
            raise broken(
                "a block's scale is negative, too large or not finite, or an e4m3 code stands for NaN"
            )


def u8bit_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
    if not _supported(outs):
        return reference.u8bit_combine_(outs, payloads, divisor)
    for out, of_ranks in zip(outs, payloads):
        codes = _codes(of_ranks, out.numel())
        scales = [checked_scale(parts[1], out.dtype) for parts in of_ranks]
        at, _owners = tree(out.dtype)
        _native.u8bit_combine(*_target(out), at[0], codes, scales, divisor, threads())


def natural_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
    if not _supported(outs):
        return reference.natural_combine_(outs, payloads, divisor)
    for out, of_ranks in zip(outs, payloads):
        codes = _codes(of_ranks, out.numel())
        bases = [checked_bases(parts[1], out.numel(), out.dtype) for parts in of_ranks]
        _native.natural_combine(*_target(out), codes, bases, divisor, threads())


def ternary_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
    if not _supported(outs):
        return reference.ternary_combine_(outs, payloads, divisor)
    for out, of_ranks in zip(outs, payloads):
        codes = _codes(of_ranks, wire.trit_bytes(out.numel()))
        scales = [checked_scale(parts[1], out.dtype) for parts in of_ranks]
        if not _native.ternary_combine(*_target(out), codes, scales, divisor, threads()):
            raise broken("a byte of five trits is above 242")


def scaled_sign_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
    if not _supported(outs):
        return reference.scaled_sign_combine_(outs, payloads, divisor)
    for out, of_ranks in zip(outs, payloads):
        scales = [checked_scale(parts[1], out.dtype) for parts in of_ranks]
        _two_combine(out, of_ranks, [-scale for scale in scales], scales, divisor)


def onebit_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
    if not _supported(outs):
        return reference.onebit_combine_(outs, payloads, divisor)
    for out, of_ranks in zip(outs, payloads):
        means = [checked_means(parts[1], out.dtype) for parts in of_ranks]
        _two_combine(out, of_ranks, [low for low, _ in means], [high for _, high in means], divisor)


def _two_combine(
    out: Tensor,
    of_ranks: Sequence[Sequence[Tensor]],
    lows: list[float],
    highs: list[float],
    divisor: float,
) -> None:
    bits = _codes(of_ranks, wire.packed_bytes(out.numel(), 1))
    _native.two_combine(*_target(out), bits, lows, highs, divisor, threads())


def sign_combine_(outs: Sequence[Tensor], payloads: Payloads, words: Sequence[int]) -> None:
    reference.vote_each(sign_vote, outs, payloads, words)
