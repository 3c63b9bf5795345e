"""Triton: one bit per element."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..check import checked_flag, checked_means, checked_scale, payload_part
from ..reference import signs as reference
from ..reference.combine import vote_each
from ..source import Source
from ..wire import Payloads, packed_bytes
from .bucket import run_bucket, together
from .decoding import Format
from .launch import TILE, beside, halves, inputs, run, serves, tiles
from .programs import signs as programs
from .reduce import row_totals

__all__ = [
    "onebit_add",
    "onebit_combine_",
    "onebit_encode",
    "scaled_sign_add",
    "scaled_sign_combine_",
    "scaled_sign_encode",
    "sign_add",
    "sign_combine_",
    "sign_encode",
    "sign_vote",
]

BYTES = 128
"""Bytes of signs per program."""


def sign_encode(source: Source, word: int, bits: Tensor, flag: Tensor) -> None:
    """The sign of v, random for zero elements. flag = 0 means that all elements are zero."""
    x = source.x
    if not serves(x):
        return reference.sign_encode(source, word, bits, flag)
    n = x.numel()
    payload_part(bits, torch.uint8, packed_bytes(n, 1))
    payload_part(flag, torch.uint8, 1)
    beside(x, bits, flag)
    flag.zero_()
    arguments = (*inputs(source), *halves(word), n, bits, flag)
    constants = {"HAS_G": source.grad is not None, "KEEP": source.leaves("compensated"), "BYTES": BYTES}
    run(programs.sign_encode, tiles(bits.numel(), BYTES), x, *arguments, **constants)


def sign_add(out: Tensor, bits: Tensor, flag: Tensor) -> None:
    """out += 1 or -1; unchanged if the flag is zero."""
    if not serves(out):
        return reference.sign_add(out, bits, flag)
    n = out.numel()
    payload_part(bits, torch.uint8, packed_bytes(n, 1))
    beside(out, bits)
    if checked_flag(flag):
        run(programs.sign_add, tiles(n), out, out, bits, n, TILE=TILE)


def sign_vote(out: Tensor, ballots: Sequence[Tensor], word: int) -> None:
    """out = the majority sign of the ballots; ties take a random sign that depends only on `word`."""
    if not serves(out) or not ballots:
        return reference.sign_vote(out, ballots, word)
    n = out.numel()
    for bits in ballots:
        payload_part(bits, torch.uint8, packed_bytes(n, 1))
    beside(out, *ballots)
    together = torch.stack(list(ballots))
    arguments = (together, len(ballots), *halves(word), n, together.shape[1])
    run(programs.sign_vote, tiles(n), out, out, *arguments, TILE=TILE)


def _totals(
    x: Tensor, arguments: tuple[object, ...], sides: bool, has_g: bool, smaller: bool
) -> tuple[Tensor, Tensor]:
    """Sums over the fixed tree, of v * 2^-3 or of v * 2^-67, and how many elements of each block are negative."""
    n = x.numel()
    blocks, rows = tiles(n, 1024), 2 if sides else 1
    counts = torch.empty(blocks, dtype=torch.int64, device=x.device)
    sums = torch.empty(rows, blocks, dtype=torch.float64, device=x.device)
    constants = {"SIDES": sides, "SMALLER": smaller, "HAS_G": has_g}
    run(programs.side_sums, blocks, x, *arguments, n, sums, counts, **constants)
    return row_totals(sums), counts


def _means(x: Tensor, arguments: tuple[object, ...], sides: bool, has_g: bool) -> Tensor:
    """The mean of |v|, or the means of the negative and of the other elements, in the dtype of `x`."""
    n = x.numel()
    totals, negative = _totals(x, arguments, sides, has_g, False)
    # Counts are a tensor on the device: for a number from the host, torch multiplies by the reciprocal there.
    counts = torch.full_like(totals, n)
    if sides:
        below = negative.sum()
        counts = torch.stack([below, n - below]).clamp(min=1).to(torch.float64)
    means = totals / counts * 2.0**3
    # No sum of such float32 numbers overflows, and a check would synchronize with the device.
    if x.dtype is torch.float64 and not bool(torch.isfinite(totals).all()):
        smaller, _ = _totals(x, arguments, sides, has_g, True)
        means = torch.where(torch.isfinite(totals), means, smaller / counts * 2.0**67)
    return means.to(x.dtype)


def scaled_sign_encode(source: Source, bits: Tensor, scale: Tensor) -> None:
    """Signs, and the mean of abs(v) (Karimireddy et al. 2019, algorithm 1)."""
    x = source.x
    if not serves(x):
        return reference.scaled_sign_encode(source, bits, scale)
    n = x.numel()
    payload_part(bits, torch.uint8, packed_bytes(n, 1))
    payload_part(scale, x.dtype, 1)
    beside(x, bits, scale)
    owed = _owed(source)
    scale.copy_(_two_encode(source, owed, bits, False))
    if owed is not None:
        torch.stack([-scale[0], scale[0]], out=owed)


def onebit_encode(source: Source, bits: Tensor, means: Tensor) -> None:
    """Signs, and the means of the negative and of the other elements (Seide et al. 2014, section 3.2)."""
    x = source.x
    if not serves(x):
        return reference.onebit_encode(source, bits, means)
    n = x.numel()
    payload_part(bits, torch.uint8, packed_bytes(n, 1))
    payload_part(means, x.dtype, 2)
    beside(x, bits, means)
    owed = _owed(source)
    means.copy_(_two_encode(source, owed, bits, True))
    if owed is not None:
        owed.copy_(means)


def _owed(source: Source) -> Tensor | None:
    """Where to write the sent values if x becomes the deferred residual."""
    return source.owed if source.leaves("deferred") else None


def _two_encode(source: Source, owed: Tensor | None, bits: Tensor, sides: bool) -> Tensor:
    """Packs signs and returns what `_means` does."""
    x = source.x
    n = x.numel()
    arguments, has_g = inputs(source), source.grad is not None
    if owed is not None:
        payload_part(owed, x.dtype, 2)
        beside(x, owed)
        run(programs.settle, tiles(n), x, *arguments, n, owed, HAS_G=has_g, TILE=TILE)
        arguments, has_g = inputs(Source(x)), False
    means = _means(x, arguments, sides, has_g)
    run(programs.pack_signs, tiles(bits.numel(), BYTES), x, *arguments, n, bits, HAS_G=has_g, BYTES=BYTES)
    return means


def sign_combine_(outs: Sequence[Tensor], payloads: Payloads, words: Sequence[int]) -> None:
    """`sign_vote` of the ranks whose tensor is not zero, with each tensor's word."""
    if not together(outs):
        return vote_each(sign_vote, outs, payloads, words)
    for out, of_ranks in zip(outs, payloads):
        for bits, flag in of_ranks:
            payload_part(bits, torch.uint8, packed_bytes(out.numel(), 1))
            payload_part(flag, torch.uint8, 1)
            if out.is_cpu:
                checked_flag(flag)
    run_bucket(programs.sign_combine, outs, payloads, None, words)


def _values_part(out: Tensor, bits: Tensor, values: Tensor, *, count: int) -> None:
    """Check a payload of signs and the one or two numbers they stand for; those on a device were checked with a step."""
    payload_part(bits, torch.uint8, packed_bytes(out.numel(), 1))
    payload_part(values, out.dtype, count)
    if out.is_cpu:
        (checked_scale if count == 1 else checked_means)(values, out.dtype)


_SCALED = Format(programs.scaled_signs, reference.scaled_sign_add, partial(_values_part, count=1))
_ONEBIT = Format(programs.two_means, reference.onebit_add, partial(_values_part, count=2))


def scaled_sign_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
    """Each of `outs` = the sum over ranks of what `scaled_sign_add` adds, over `divisor`."""
    _SCALED.combine_(outs, payloads, divisor)


def onebit_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
    """Each of `outs` = the sum over ranks of what `onebit_add` adds, over `divisor`."""
    _ONEBIT.combine_(outs, payloads, divisor)


def scaled_sign_add(out: Tensor, bits: Tensor, scale: Tensor) -> None:
    """out += scale or -scale."""
    _SCALED.add(out, bits, scale)


def onebit_add(out: Tensor, bits: Tensor, means: Tensor) -> None:
    """out += the mean selected by each bit."""
    _ONEBIT.add(out, bits, means)
