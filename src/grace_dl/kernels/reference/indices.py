"""Sorted indices as bits: Elias-Fano, or a bitmap where that is smaller; the size follows from (d, k) alone.

Elias-Fano (Elias 1974, Fano 1971) cuts index i of an increasing sequence into its `l` low bits, stored as they
are, and its high part, stored in unary: bit `high + position` of a second array is set. Bits fill bytes from the
lowest one. A sequence with fewer than k indices is padded: Elias-Fano repeats `d - 1`, a bitmap holds no padding.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ..check import broken, payload_part
from .bits import pack, unpack

__all__ = ["decode_indices", "encode_indices", "index_bytes"]


def low_width(d: int, k: int) -> int:
    """Bits of an index that are stored as they are: floor(log2(d / k))."""
    return max(0, (d // k).bit_length() - 1)


def _sizes(d: int, k: int) -> tuple[int, int]:
    """Bytes of the low and of the high part."""
    low = low_width(d, k)
    return (k * low + 7) // 8, (k + (d >> low) + 1 + 7) // 8


def is_bitmap(d: int, k: int) -> bool:
    """Whether one bit an element is smaller than Elias-Fano."""
    return (d + 7) // 8 <= sum(_sizes(d, k))


@functools.lru_cache(4096)
def index_bytes(d: int, k: int) -> int:
    """Bytes that `k` sorted indices below `d` take.

    >>> index_bytes(1_000_000, 10_000) * 8 / 10_000
    8.5632
    >>> index_bytes(16, 8), index_bytes(16, 0)
    (2, 0)
    """
    if k == 0:
        return 0
    return (d + 7) // 8 if is_bitmap(d, k) else sum(_sizes(d, k))


def flags(data: Tensor, bits: int, n: int) -> Tensor:
    """The first `n` codes of `bits` bits of a peer's `data`; spare bits of the last byte must be zero."""
    spare = data.numel() * 8 - n * bits
    if spare and int(data[-1]) >> (8 - spare):
        raise broken("padding bits are set")
    return unpack(data, bits, n)


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
    low_bytes, high_bytes = _sizes(d, k)
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
        found = flags(index, 1, d).nonzero().view(-1)
        if found.numel() != count:
            raise broken(f"a bitmap marks {found.numel()} elements where {count} are announced")
        return found
    width = low_width(d, k)
    low_bytes, _ = _sizes(d, k)
    places = flags(index[low_bytes:], 1, k + (d >> width) + 1).nonzero().view(-1)
    if places.numel() != k:
        raise broken(f"coded indices hold {places.numel()} entries where {k} are announced")
    indices = (places - torch.arange(k, device=index.device)) << width
    if width:
        indices += flags(index[:low_bytes], width, k)
    kept = indices[:count]
    if bool((kept[1:] <= kept[:-1]).any()) or bool((kept >= d).any()):
        raise broken(f"indices do not increase within {d} elements")
    if bool((indices[count:] != d - 1).any()):
        raise broken("padding of the indices is wrong")
    return kept
