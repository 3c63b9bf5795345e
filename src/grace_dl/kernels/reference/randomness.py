"""Counter-based randomness: the draw of element i is a pure function of a 64-bit word and i.

A 32-bit integer hash with full avalanche (the `lowbias32` constants of Wellons, "Prospecting for hash functions") of an
arithmetic progression whose start and odd stride are the two halves of the word: words differ in both, so their sequences
are not shifted copies of each other. There is no state, so any backend can compute any element independently.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["uniforms"]

_MASK = 0xFFFFFFFF


def _mix(h: Tensor) -> Tensor:
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & _MASK
    h = h ^ (h >> 15)
    h = _mul(h, 0x846CA68B)
    return h ^ (h >> 16)


def _mul(h: Tensor, factor: int) -> Tensor:
    # A product of two 32-bit numbers may exceed 2^63, so its low 32 bits are computed from two halves.
    low = (h & 0xFFFF) * factor
    high = (((h >> 16) * (factor & 0xFFFF)) & 0xFFFF) << 16
    return (low + high) & _MASK


def draws(word: int, index: Tensor) -> Tensor:
    """32 random bits (in int64) for each element index (int64)."""
    start, stride = word & _MASK, word >> 32 | 1
    return _mix((_mul(index & _MASK, stride) + start + _mul(index >> 32, 0x9E3779B9)) & _MASK)


def uniforms(word: int, n: int, like: Tensor, begin: int = 0) -> Tensor:
    """Uniform numbers in [0, 1) for elements begin..begin+n, in the dtype of `like`."""
    index = torch.arange(begin, begin + n, dtype=torch.int64, device=like.device)
    return (draws(word, index) >> 8).to(like.dtype) * 2.0**-24
