"""Compiled: AdaQ's two-sided selection."""

from __future__ import annotations

import torch
from torch import Tensor

import grace_dl._native as _native

from ..check import broken
from ..reference import adaq as reference
from ..source import Source
from ..wire import adaq_slots, index_bytes
from .pointer import address, inputs, native_dtype, part_address, threads

__all__ = ["adaq_add", "adaq_encode"]


def adaq_encode(
    source: Source, ratio: float, slots: int, means: Tensor, counts: Tensor, index: Tensor, signs: Tensor
) -> None:
    """The largest share of the positive and of the negative elements, each as its mean."""
    x = source.x
    wide, n = native_dtype(x), x.numel()
    if wide is None or n == 0:
        return reference.adaq_encode(source, ratio, slots, means, counts, index, signs)
    if slots < adaq_slots(ratio, n):
        raise ValueError(f"{slots} slots are too few for {ratio} of either side of {n} elements")
    out = (
        part_address(means, x.dtype, 2),
        part_address(counts, torch.int32, 2),
        part_address(index, torch.uint8, index_bytes(n, slots)),
        part_address(signs, torch.uint8, (slots + 7) // 8),
    )
    _native.adaq_encode(wide, *inputs(source, n), ratio, slots, *out, threads())


def adaq_add(
    out: Tensor, means: Tensor, counts: Tensor, index: Tensor, signs: Tensor, slots: int, alpha: float = 1.0
) -> None:
    """`out += alpha * decoded`, after checking that counts, means, signs and indices are consistent."""
    wide, n = native_dtype(out), out.numel()
    if wide is None or not 0 < slots <= n:
        return reference.adaq_add(out, means, counts, index, signs, slots, alpha)
    sides = reference.checked_sides(means, counts, slots)
    data = (
        part_address(means, out.dtype, 2),
        part_address(index, torch.uint8, index_bytes(n, slots)),
        part_address(signs, torch.uint8, (slots + 7) // 8),
    )
    fault = _native.adaq_add(wide, address(out, out.dtype, n), n, slots, *sides, *data, alpha, threads())
    if fault:
        raise broken(_native.FAULTS[fault])
