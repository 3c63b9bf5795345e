"""Packing small unsigned codes into bytes, first code in the lowest bits, and back."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..check import broken, shown


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes in [0, 2**bits) as bytes, along the last dimension; spare bits of the last byte are zero."""
    if bits == 8:
        return codes.to(torch.uint8)
    shifts = torch.arange(bits, device=codes.device)
    stream = ((codes.to(torch.int64).unsqueeze(-1) >> shifts) & 1).flatten(-2)
    stream = pad(stream, (0, -stream.shape[-1] % 8)).unflatten(-1, (-1, 8))
    weights = 1 << torch.arange(8, device=codes.device)
    return (stream * weights).sum(-1).to(torch.uint8)


def unpack(data: Tensor, bits: int, n: int) -> Tensor:
    """The first `n` codes of `bits` bits in `data` (uint8), along the last dimension, as int64."""
    if bits == 8:
        return data[..., :n].to(torch.int64)
    shifts = torch.arange(8, device=data.device)
    stream = ((data.to(torch.int64).unsqueeze(-1) >> shifts) & 1).flatten(-2)
    weights = 1 << torch.arange(bits, device=data.device)
    return (stream[..., : n * bits].unflatten(-1, (n, bits)) * weights).sum(-1)


def spare_bits(data: Tensor, n: int, bits: int) -> Tensor:
    """Which spare bits of the last byte of `n` packed codes, along the last dimension, are set; empty if there are none."""
    spare = data.shape[-1] * 8 - n * bits
    return data[..., -1:] >> (8 - spare) if spare else data[..., :0]


def unpack_checked(data: Tensor, bits: int, n: int) -> Tensor:
    """The first `n` codes of a peer's `data`; spare bits of the last byte must be zero."""
    if shown(spare_bits(data, n, bits)):
        raise broken("padding bits are set")
    return unpack(data, bits, n)
