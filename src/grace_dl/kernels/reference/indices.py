"""Sorted indices as bits (`wire` describes the two codes)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..check import broken, payload_part
from ..wire import index_bytes, index_parts, is_bitmap, low_width
from .bits import pack, spare_bits, unpack, unpack_checked

__all__ = ["decode_indices", "encode_indices"]


def encode_indices(indices: Tensor, d: int, k: int, out: Tensor) -> None:
    """Code at most `k` strictly increasing `indices` below `d` into `out` of `index_bytes(d, k)` bytes."""
    if k == 0:
        return
    if is_bitmap(d, k):
        marks = torch.zeros(d, dtype=torch.uint8, device=out.device)
        marks[indices] = 1
        out.copy_(pack(marks, 1))
        return
    padded = torch.full((k,), d - 1, dtype=torch.int64, device=out.device)
    padded[: indices.numel()] = indices
    _encode_padded(padded, d, out)


def encode_marked(marks: Tensor, padded: Tensor, out: Tensor) -> None:
    """The same for marked elements; `padded` are their positions, then the last position."""
    d, k = marks.numel(), padded.numel()
    if is_bitmap(d, k):
        out.copy_(pack(marks, 1))
    else:
        _encode_padded(padded, d, out)


def _encode_padded(padded: Tensor, d: int, out: Tensor) -> None:
    k = padded.numel()
    width = low_width(d, k)
    low_bytes, high_bytes = index_parts(d, k)
    if width:
        out[:low_bytes] = pack(padded & ((1 << width) - 1), width)
    unary = torch.zeros(high_bytes * 8, dtype=torch.uint8, device=out.device)
    unary[(padded >> width) + torch.arange(k, device=out.device)] = 1
    out[low_bytes:] = pack(unary, 1)


def entries(index: Tensor, d: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `k` coded entries (of a bitmap: none), how many there are, and the set padding bits.

    Unchecked, and without a copy from the device: sizes depend on `d` and `k` alone.
    """
    if is_bitmap(d, k):
        return index.new_empty(0, dtype=torch.int64), unpack(index, 1, d).sum(), spare_bits(index, d, 1)
    width = low_width(d, k)
    low_bytes, _ = index_parts(d, k)
    length = k + (d >> width) + 1
    unary, low = index[low_bytes:], index[:low_bytes]
    marks = unpack(unary, 1, length)
    rank = marks.cumsum(0) - 1
    # A mark's entry is its rank; other bits, and marks behind the last entry, go to a place that is cut off.
    place = torch.where((marks != 0) & (rank < k), rank, k)
    high = torch.arange(length, device=index.device) - rank
    indices = torch.zeros(k + 1, dtype=torch.int64, device=index.device).scatter_(0, place, high << width)[:k]
    spare = spare_bits(unary, length, 1)
    if width:
        indices = indices + unpack(low, width, k)
        spare = torch.cat([spare, spare_bits(low, k, width)])
    return indices, marks.sum(), spare


def decode_indices(index: Tensor, d: int, k: int, count: int | None = None) -> Tensor:
    """The first `count` (default: all `k`) indices, checked: strictly increasing, below `d`, then padding."""
    count = k if count is None else count
    if not 0 <= count <= k <= d:
        raise broken(f"{count} of {k} indices among {d} elements are announced")
    payload_part(index, torch.uint8, index_bytes(d, k))
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=index.device)
    if is_bitmap(d, k):
        found = unpack_checked(index, 1, d).nonzero().view(-1)
        if found.numel() != count:
            raise broken(f"a bitmap marks {found.numel()} elements where {count} are announced")
        return found
    width = low_width(d, k)
    low_bytes, _ = index_parts(d, k)
    places = unpack_checked(index[low_bytes:], 1, k + (d >> width) + 1).nonzero().view(-1)
    if places.numel() != k:
        raise broken(f"coded indices hold {places.numel()} entries where {k} are announced")
    indices = (places - torch.arange(k, device=index.device)) << width
    if width:
        indices += unpack_checked(index[:low_bytes], width, k)
    kept = indices[:count]
    if bool((kept[1:] <= kept[:-1]).any()) or bool((kept >= d).any()):
        raise broken(f"indices do not increase within {d} elements")
    if bool((indices[count:] != d - 1).any()):
        raise broken("padding of the indices is wrong")
    return kept
