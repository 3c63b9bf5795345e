"""INCEPTIONN's exponent classes (Li 2018, section 4): drop, 8, 16 bits or the float itself; plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..check import payload_part
from ..source import Source
from ..wire import packed_bytes
from .basic import formed
from .bits import pack, unpack_checked

__all__ = ["inceptionn_add", "inceptionn_encode"]


def inceptionn_encode(source: Source, bound: float) -> list[Tensor]:
    """Tags of 2 bits, then the elements of each class: multiples of `bound`, a power of two, or raw."""
    v, ef = formed(source)
    size = v.abs()
    tag = torch.full_like(v, 3, dtype=torch.uint8)
    for code, limit in ((2, 32768 * bound), (1, 128 * bound), (0, bound)):
        tag[size < limit] = code
    small = torch.round(v[tag == 1] / bound).clamp(-127, 127).to(torch.int8)
    medium = torch.round(v[tag == 2] / bound).clamp(-32767, 32767).to(torch.int16)
    raw = v[tag == 3]
    payload = [pack(tag, 2), small.view(torch.uint8), medium, raw]
    if ef:
        v -= _decoded(v.numel(), payload, bound, v.dtype)
    return payload


def inceptionn_add(out: Tensor, payload: list[Tensor], bound: float, alpha: float = 1.0) -> None:
    """`out += alpha * decoded`, after checking that the class sizes match the tags."""
    out.view(-1).add_(_decoded(out.numel(), payload, bound, out.dtype) * alpha)


def _decoded(d: int, payload: list[Tensor], bound: float, dtype: torch.dtype) -> Tensor:
    tags, small, medium, raw = payload
    payload_part(tags, torch.uint8, packed_bytes(d, 2))
    tag = unpack_checked(tags, 2, d)
    payload_part(small, torch.uint8, int((tag == 1).sum()))
    payload_part(medium, torch.int16, int((tag == 2).sum()))
    payload_part(raw, dtype, int((tag == 3).sum()))
    decoded = torch.zeros(d, dtype=dtype, device=tags.device)
    decoded[tag == 1] = small.view(torch.int8).to(dtype) * bound
    decoded[tag == 2] = medium.to(dtype) * bound
    decoded[tag == 3] = raw
    return decoded
