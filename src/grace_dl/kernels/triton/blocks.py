"""Triton: stochastic rounding to a few levels with one scale per block."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from ..check import payload_part
from ..reference import blocks as reference
from ..source import Source
from ..wire import packed_bytes
from .launch import TILE, beside, halves, inputs, run, serves, tiles
from .programs import blocks as programs

__all__ = ["block_add", "block_encode"]

WIDEST = 8192
"""The longest block that a program can hold; longer ones fall back to the reference."""


def _largest(dtype: torch.dtype) -> int:
    """The largest finite number of `dtype`, as the bits of a float64."""
    return int(struct.unpack("<q", struct.pack("<d", torch.finfo(dtype).max))[0])


def _span(bits: int) -> int:
    """Bytes that a code can span, which depends on the bits at which codes start."""
    return max(1, bits // 8) if bits in (1, 2, 4, 8, 16) else (bits + 14) // 8


def block_encode(
    source: Source, block: int, levels: int, bits: int, norm: str, word: int, codes: Tensor, scales: Tensor
) -> None:
    """Round abs(v) * (levels / scale) up or down at random, without bias (Alistarh et al. 2017, eq. 3.1)."""
    x = source.x
    if not serves(x) or block > WIDEST or bits > 16:
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
        LARGEST=_largest(x.dtype),
        L2=norm == "l2",
        PACKED=packed,
        HAS_G=source.grad is not None,
        EF=source.leaves("residual"),
    )
    if not packed:
        run(programs.pack_codes, tiles(codes.numel(), 128), x, into, n, codes, BITS=bits, BYTES=128)


def block_add(out: Tensor, codes: Tensor, scales: Tensor, block: int, levels: int, bits: int) -> None:
    """out += q * (scale / levels), after checking that codes and scales are valid."""
    if not serves(out) or bits > 16:
        return reference.block_add(out, codes, scales, block, levels, bits)
    n = out.numel()
    payload_part(codes, torch.uint8, packed_bytes(n, bits))
    payload_part(scales, out.dtype, tiles(n, block))
    beside(out, codes, scales)
    bad = torch.zeros(1, dtype=torch.int32, device=out.device)
    kind = {"LEVELS": levels, "BITS": bits, "SPAN": _span(bits), "TILE": TILE}
    run(programs.block_check, tiles(n), out, codes, scales, n, scales.numel(), bad, **kind)
    if bad.item():
        # The reference finds the same error before it adds anything, and raises it.
        return reference.block_add(out, codes, scales, block, levels, bits)
    run(programs.block_add, tiles(n), out, out, codes, scales, n, BLOCK=block, **kind)
