"""Triton: e4m3 floats with a scale per block."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..check import payload_part
from ..reference import cast as reference
from ..source import Source
from ..wire import Payloads, fp8_limit
from .decoding import Format
from .launch import TILE, WIDEST, beside, float_bits, inputs, run, serves, tiles
from .programs import float8 as programs

__all__ = ["fp8_add", "fp8_combine_", "fp8_encode"]


def fp8_encode(source: Source, block: int, codes: Tensor, scales: Tensor) -> None:
    """e4m3 of v / scale, rounded to nearest even, with scale = absmax / 448 per block (uint8 codes)."""
    x = source.x
    if not serves(x) or block > WIDEST:
        return reference.fp8_encode(source, block, codes, scales)
    n = x.numel()
    payload_part(codes, torch.uint8, n)
    payload_part(scales, x.dtype, tiles(n, block))
    beside(x, codes, scales)
    log = (block - 1).bit_length()
    rows = max(1, TILE >> log)
    constants = {"BLOCK": block, "ROWS": rows, "WIDTH": 1 << log, "LIMIT": float_bits(fp8_limit(x.dtype))}
    constants |= {"HAS_G": source.grad is not None, "EF": source.leaves("residual")}
    run(programs.fp8_encode, tiles(n, block * rows), x, *inputs(source), n, codes, scales, **constants)


def _format(block: int) -> Format:
    add, check = (partial(call, block=block) for call in (reference.fp8_add, reference.fp8_parts))
    return Format(programs.fp8, add, check, block)


def fp8_add(out: Tensor, codes: Tensor, scales: Tensor, block: int) -> None:
    """out += e4m3 values times the scale of their block."""
    _format(block).add(out, codes, scales)


def fp8_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float, block: int) -> None:
    """Each of `outs` = the sum over ranks of what `fp8_add` adds, over `divisor`."""
    _format(block).combine_(outs, payloads, divisor)
