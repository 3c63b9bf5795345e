"""Sorted indices as bits (`wire` describes the two codes)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..check import broken, payload_part
from ..wire import index_bytes, index_parts, is_bitmap, low_width
from .bits import pack, unpack_checked

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
    width = low_width(d, k)
    low_bytes, high_bytes = index_parts(d, k)
    padded = torch.full((k,), d - 1, dtype=torch.int64, device=out.device)
    padded[: indices.numel()] = indices
    if width:
        out[:low_bytes] = pack(padded & ((1 << width) - 1), width)
    unary = torch.zeros(high_bytes * 8, dtype=torch.uint8, device=out.device)
    unary[(padded >> width) + torch.arange(k, device=out.device)] = 1
    out[low_bytes:] = pack(unary, 1)


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
