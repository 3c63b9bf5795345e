"""Triton: TernGrad."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..check import payload_part
from ..reference import ternary as reference
from ..reference.blocks import squares_factor
from ..source import Source
from ..wire import TRIT_GROUP, Payloads, trit_bytes
from .decoding import Format
from .launch import beside, halves, inputs, run, scalars, serves, tiles
from .programs import ternary as programs
from .reduce import row_totals

__all__ = ["ternary_add", "ternary_combine_", "ternary_encode"]


def ternary_encode(source: Source, clip: float, word: int, codes: Tensor, scale: Tensor) -> None:
    """Keep the sign with probability abs(c) / s, where c is v clipped at `clip` sigma and s its absmax.

    Wen et al. 2017, eq. 1, 2 and 9.
    """
    x = source.x
    if not serves(x):
        return reference.ternary_encode(source, clip, word, codes, scale)
    n = x.numel()
    payload_part(codes, torch.uint8, trit_bytes(n))
    payload_part(scale, x.dtype, 1)
    beside(x, codes, scale)
    formed, has_g = inputs(source), source.grad is not None
    tops = torch.empty(tiles(n, 1024), dtype=x.dtype, device=x.device)
    sums = torch.empty(1, tops.numel(), dtype=torch.float64, device=x.device)
    measure = partial(run, programs.square_sums, tops.numel(), x, *formed, n, HAS_G=has_g)
    measure(tops, tops, sums, SCALED=False)
    top = factor = tops.max()
    # Squares of float32 numbers are safe in float64; others are scaled by a factor that depends on the largest.
    scaled = x.dtype is torch.float64
    if scaled:
        factor = squares_factor(top)
        measure(factor, tops, sums, SCALED=True)
    arguments = (*formed, *halves(word), *scalars(clip), n, row_totals(sums), factor, top, codes, scale)
    constants = {"SCALED": scaled, "GROUP": TRIT_GROUP, "HAS_G": has_g, "EF": source.leaves("residual")}
    run(programs.ternary_encode, tiles(n, 5 * TRIT_GROUP), x, *arguments, **constants)


_FORMAT = Format(programs.ternary, reference.ternary_add, reference.ternary_parts, TRIT_GROUP)


def ternary_add(out: Tensor, codes: Tensor, scale: Tensor) -> None:
    """out += trit * scale."""
    _FORMAT.add(out, codes, scale)


def ternary_combine_(outs: Sequence[Tensor], payloads: Payloads, divisor: float) -> None:
    """Each of `outs` = the sum over ranks of what `ternary_add` adds, over `divisor`."""
    _FORMAT.combine_(outs, payloads, divisor)
