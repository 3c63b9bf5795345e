"""Triton: stochastic rounding to a few levels with one scale per block."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..check import payload_part
from ..reference import blocks as reference
from ..reference.combine import block_combine_ as reference_combine
from ..source import Source
from ..wire import Payloads, packed_bytes
from .decoding import Format
from .launch import TILE, WIDEST, beside, float_bits, halves, inputs, run, serves, tiles
from .programs import blocks as programs

__all__ = ["block_add", "block_combine_", "block_encode"]

WIDEST_CODE = 16
"""The longest code, in bits, that programs read and write; longer ones fall back to the reference."""


def block_encode(
    source: Source, block: int, levels: int, bits: int, norm: str, word: int, codes: Tensor, scales: Tensor
) -> None:
    """Round abs(v) * (levels / scale) up or down at random, without bias (Alistarh et al. 2017, eq. 3.1)."""
    x = source.x
    if not serves(x) or block > WIDEST or bits > WIDEST_CODE:
        return reference.block_encode(source, block, levels, bits, norm, word, codes, scales)
    n = x.numel()
    payload_part(codes, torch.uint8, packed_bytes(n, bits))
    payload_part(scales, x.dtype, tiles(n, block))
    beside(x, codes, scales)
    log = (block - 1).bit_length()
    rows = max(1, TILE >> log)
    # A byte shared by two programs cannot be written by either; a second kernel packs such codes.
    packed = bits in (2, 4, 8, 16) and block * bits % 8 == 0
    into = codes if packed else torch.empty(n, dtype=torch.int32, device=x.device)
    run(
        programs.block_encode,
        tiles(n, block * rows),
        x,
        *inputs(source),
        *halves(word),
        n,
        into,
        scales,
        BLOCK=block,
        ROWS=rows,
        WIDTH=1 << log,
        LOG=log,
        LEVELS=levels,
        BITS=bits,
        LARGEST=float_bits(torch.finfo(x.dtype).max),
        L2=norm == "l2",
        PACKED=packed,
        HAS_G=source.grad is not None,
        EF=source.leaves("residual"),
    )
    if not packed:
        run(programs.pack_codes, tiles(codes.numel(), 128), x, into, n, codes, BITS=bits, BYTES=128)


def _check(out: Tensor, codes: Tensor, scales: Tensor, block: int, levels: int, bits: int) -> None:
    reference.block_parts(out, codes, scales, block, bits)
    if out.is_cpu:
        reference.block_codes(codes, out.numel(), levels, bits)


def _format(block: int, levels: int, bits: int) -> Format:
    add = partial(reference.block_add, block=block, levels=levels, bits=bits)
    check = partial(_check, block=block, levels=levels, bits=bits)
    return Format(programs.quantised, add, check, block, levels, bits)


def block_add(out: Tensor, codes: Tensor, scales: Tensor, block: int, levels: int, bits: int) -> None:
    """out += q * (scale / levels)."""
    if bits > WIDEST_CODE:
        return reference.block_add(out, codes, scales, block, levels, bits)
    _format(block, levels, bits).add(out, codes, scales)


def block_combine_(
    outs: Sequence[Tensor], payloads: Payloads, divisor: float, block: int, levels: int, bits: int
) -> None:
    """Each of `outs` = the sum over ranks of what `block_add` adds, over `divisor`."""
    if bits > WIDEST_CODE:
        return reference_combine(outs, payloads, divisor, block, levels, bits)
    _format(block, levels, bits).combine_(outs, payloads, divisor)
