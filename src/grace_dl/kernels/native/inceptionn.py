"""Compiled: INCEPTIONN's exponent classes."""

from __future__ import annotations

import torch
from torch import Tensor

import grace_dl._native as _native

from ..check import broken, payload_part
from ..reference import inceptionn as reference
from ..source import Source
from ..wire import packed_bytes
from .pointer import address, inputs, native_dtype, part_address, threads

__all__ = ["inceptionn_add", "inceptionn_encode"]


def inceptionn_encode(source: Source, bound: float) -> list[Tensor]:
    """Tags of 2 bits, then the elements of each class: multiples of `bound`, a power of two, or raw."""
    x = source.x
    wide = native_dtype(x)
    if wide is None:
        return reference.inceptionn_encode(source, bound)
    n = x.numel()
    at = inputs(source, n)
    ef = at[-1]
    tags = torch.empty(packed_bytes(n, 2), dtype=torch.uint8)
    starts = torch.empty(-(-n // _native.inceptionn_piece) + 1, 3, dtype=torch.int64)
    where = starts.data_ptr()
    _native.inceptionn_find(wide, *at, bound, tags.data_ptr(), where, threads())
    small, medium, raw = (
        torch.empty(count, dtype=kind)
        for count, kind in zip(starts[-1].tolist(), (torch.uint8, torch.int16, x.dtype))
    )
    classes = (small.data_ptr(), medium.data_ptr(), raw.data_ptr())
    # With error feedback the first step stored the sum in x.
    at = (at[0], 0, *at[2:]) if ef else at
    _native.inceptionn_emit(wide, *at, bound, where, *classes, threads())
    return [tags, small, medium, raw]


def inceptionn_add(out: Tensor, payload: list[Tensor], bound: float, alpha: float = 1.0) -> None:
    """`out += alpha * decoded`, after checking that the class sizes match the tags."""
    wide = native_dtype(out)
    if wide is None:
        return reference.inceptionn_add(out, payload, bound, alpha)
    n = out.numel()
    tags, *classes = payload
    parts = [part_address(tags, torch.uint8, packed_bytes(n, 2))]
    for part, kind in zip(classes, (torch.uint8, torch.int16, out.dtype), strict=True):
        payload_part(part, kind, part.numel())
        parts += [address(part, kind, part.numel()), part.numel()]
    fault = _native.inceptionn_add(wide, address(out, out.dtype, n), n, *parts, bound, alpha, threads())
    if fault:
        raise broken(_native.FAULTS[fault])
