"""Triton: the compensated gradient."""

from __future__ import annotations

from torch import Tensor

from ..reference import basic as reference
from ..source import Source
from .launch import TILE, inputs, run, serves, tiles
from .programs import common

__all__ = ["axpby_"]


def axpby_(x: Tensor, g: Tensor, beta: float, gamma: float) -> Tensor:
    """x = beta * x + gamma * g, in place, every operation rounded."""
    if not serves(x):
        return reference.axpby_(x, g, beta, gamma)
    _, other, *coefficients = inputs(Source(x, g, beta, gamma))
    run(common.form, tiles(x.numel()), x, x, other, x, *coefficients, x.numel(), TILE=TILE)
    return x
