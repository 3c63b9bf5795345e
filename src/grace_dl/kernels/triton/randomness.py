"""Triton: the counter-based generator over ranges of elements."""

from __future__ import annotations

import torch
from torch import Tensor

from ..reference import randomness as reference
from .launch import TILE, halves, run, serves, tiles
from .programs import common

__all__ = ["uniforms"]


def uniforms(word: int, n: int, like: Tensor, begin: int = 0) -> Tensor:
    """Uniform numbers in [0, 1) for elements begin..begin+n, in the dtype of `like`."""
    if n == 0 or not serves(like):
        return reference.uniforms(word, n, like, begin)
    out = torch.empty(n, dtype=like.dtype, device=like.device)
    run(common.fill_uniforms, tiles(n), out, out, *halves(word), *halves(begin), n, TILE=TILE)
    return out
