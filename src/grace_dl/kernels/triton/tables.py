"""Triton: natural compression."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from ..check import payload_part
from ..reference import tables as reference
from ..source import Source
from ..wire import NATURAL_BLOCK, NATURAL_EXPONENTS, Payloads
from .decoding import Format
from .launch import beside, halves, inputs, run, serves, tiles
from .programs import natural as programs

__all__ = ["natural_add", "natural_combine_", "natural_encode"]


def natural_encode(source: Source, word: int, codes: Tensor, bases: Tensor) -> None:
    """Round abs(v) to one of the two powers of two around it, without bias (Horvath et al. 2019, definition 2.1)."""
    x = source.x
    if not serves(x):
        return reference.natural_encode(source, word, codes, bases)
    n = x.numel()
    count = tiles(n, NATURAL_BLOCK)
    payload_part(codes, torch.uint8, n)
    payload_part(bases, torch.int16, count)
    beside(x, codes, bases)
    constants = {"BLOCK": NATURAL_BLOCK, "HIGHEST": NATURAL_EXPONENTS[x.dtype][1]}
    constants |= {"HAS_G": source.grad is not None, "EF": source.leaves("residual")}
    run(programs.natural_encode, count, x, *inputs(source), *halves(word), n, codes, bases, **constants)


def _format(out: Tensor) -> Format:
    bits = 8 * out.dtype.itemsize
    add, check = reference.natural_add, reference.natural_parts
    return Format(programs.natural, add, check, NATURAL_BLOCK, bits=bits, second=tl.int16)


def natural_add(out: Tensor, codes: Tensor, bases: Tensor) -> None:
    """out += the signed powers of two."""
    _format(out).add(out, codes, bases)


def natural_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
    """Each of `outs` = the sum over ranks of what `natural_add` adds, over `divisor`."""
    _format(outs[0]).combine_(outs, payloads, divisor)
