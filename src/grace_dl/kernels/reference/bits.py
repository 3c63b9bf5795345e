"""Packing small unsigned codes into bytes, first code in the lowest bits, and back."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..check import broken
from ..wire import packed_bytes


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes in [0, 2**bits) as bytes; spare bits of the last byte are zero."""
    n = codes.numel()
    if bits == 8:
        return codes.to(torch.uint8)
    shifts = torch.arange(bits, device=codes.device)
    stream = ((codes.to(torch.int64).view(-1, 1) >> shifts) & 1).view(-1)
    stream = pad(stream, (0, -stream.numel() % 8)).view(-1, 8)
    weights = 1 << torch.arange(8, device=codes.device)
    return (stream * weights).sum(1).to(torch.uint8)[: packed_bytes(n, bits)]


def unpack(data: Tensor, bits: int, n: int) -> Tensor:
    """The first `n` codes of `bits` bits in `data` (uint8), as int64."""
    if bits == 8:
        return data[:n].to(torch.int64)
    shifts = torch.arange(8, device=data.device)
    stream = ((data.to(torch.int64).view(-1, 1) >> shifts) & 1).view(-1)[: n * bits].view(n, bits)
    weights = 1 << torch.arange(bits, device=data.device)
    return (stream * weights).sum(1)


def unpack_checked(data: Tensor, bits: int, n: int) -> Tensor:
    """The first `n` codes of a peer's `data`; spare bits of the last byte must be zero."""
    spare = data.numel() * 8 - n * bits
    if spare and int(data[-1]) >> (8 - spare):
        raise broken("padding bits are set")
    return unpack(data, bits, n)
