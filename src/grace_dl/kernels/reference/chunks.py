"""The largest elements of each chunk, values in a few bits; plain torch.

A value is sent as its sign and the number of a bin. The bins of a chunk divide the range of its selected magnitudes evenly, and
each is decoded to the mean of its magnitudes, in bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import faults
from ..check import broken, payload_part, shown
from ..faults import Fault
from ..source import Source
from ..wire import Chunking
from .basic import formed
from .bits import pack, spare_bits, unpack
from .validity import check_padding, check_values

__all__ = ["check_chunktopk", "chunktopk_add", "chunktopk_encode"]

PRECISION = 35
"""Bits of a magnitude that contribute to its bin's mean; sums are in integers, so their order does not matter."""

EXPONENTS = (-988, 1024)
"""The range of exponents e of a chunk's magnitudes; 2^(35 - e) is finite for them."""


def chunktopk_encode(
    source: Source, chunking: Chunking, positions: Tensor, codes: Tensor, means: Tensor
) -> None:
    """Select the largest magnitudes of each chunk; of equal ones the first."""
    v, ef = formed(source)
    parts: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for rows, part in _rows(v, chunking):
        chosen = largest_of_rows(rows, part.kept)
        values = rows.gather(1, chosen)
        code, table = _quantized(values, part.bits)
        for found, packed in zip(parts, (pack(chosen, part.width), pack(code, part.bits), table)):
            found.append(packed.view(-1))
        if ef:
            rows.scatter_(1, chosen, values - _decoded(code, table, v.dtype))
    for out, found in zip((positions, codes, means), parts):
        out.copy_(torch.cat(found))


def _spans(numel: int, chunking: Chunking) -> list[tuple[int, int, Chunking]]:
    """The full chunks and the rest: number of the first, how many, and their chunking."""
    full, rest = divmod(numel, chunking.size)
    found = [(0, full, chunking)] if full else []
    return [*found, (full, 1, chunking.of_rest(rest))] if rest else found


def _rows(v: Tensor, chunking: Chunking) -> list[tuple[Tensor, Chunking]]:
    """The elements of each span, a row per chunk, with their chunking."""
    return [
        (v[first * chunking.size :][: count * part.size].view(count, part.size), part)
        for first, count, part in _spans(v.numel(), chunking)
    ]


def largest_of_rows(rows: Tensor, k: int) -> Tensor:
    """Sorted positions of the k largest magnitudes of each row; NaN is the largest of all."""
    integer = torch.int64 if rows.dtype == torch.float64 else torch.int32
    keys = rows.abs().view(integer)
    return keys.sort(dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values


def _quantized(values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes (bin and sign) of the selected values, and the means of the bins, by row."""
    magnitudes, count = values.abs().double(), 1 << (bits - 1)
    lowest, highest = magnitudes.amin(1, keepdim=True), magnitudes.amax(1, keepdim=True)
    spread = highest - lowest
    share = torch.where(spread > 0, (magnitudes - lowest) / spread, 0.0)
    finite = highest.isfinite()
    bins = torch.where(finite, share * count, 0.0).to(torch.int64).clamp(max=count - 1)
    exponents = torch.frexp(torch.where(finite, highest, 0.0)).exponent.clamp(*EXPONENTS)
    fixed = torch.round(torch.where(finite, magnitudes, 0.0) * _power(PRECISION - exponents)).to(torch.int64)
    sums = torch.zeros(len(values), count, dtype=torch.int64, device=values.device)
    sums.scatter_add_(1, bins, fixed)
    sizes = torch.zeros_like(sums).scatter_add_(1, bins, torch.ones_like(bins)).clamp(min=1)
    means = sums.double() / sizes * _power(exponents - PRECISION)
    means = means.clamp(max=torch.finfo(torch.bfloat16).max).to(torch.float32).to(torch.bfloat16)
    table = torch.where(finite, means, torch.full_like(means, float("nan")))
    return 2 * bins + (values < 0), table


def _power(exponents: Tensor) -> Tensor:
    return torch.ldexp(torch.ones_like(exponents, dtype=torch.float64), exponents)


def _decoded(code: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    magnitudes = table.to(dtype).gather(1, code >> 1)
    return torch.where((code & 1).bool(), -magnitudes, magnitudes)


def chunktopk_add(
    out: Tensor, positions: Tensor, codes: Tensor, means: Tensor, chunking: Chunking, alpha: float = 1.0
) -> None:
    """`out += alpha * decoded`; everything is checked before the first element is touched."""
    flat = out.view(-1)
    for given, (dtype, numel) in zip((positions, codes, means), chunking.spec(flat.numel()), strict=True):
        payload_part(given, dtype, numel)
    if shown(~means.isfinite()):
        raise broken("a bucket's mean is not finite")
    sent = []
    parts = _parts(flat.numel(), positions, codes, means, chunking)
    for (rows, part), (chosen, code, table) in zip(_rows(flat, chunking), parts, strict=True):
        if shown(spare_bits(chosen, part.kept, part.width)) or shown(spare_bits(code, part.kept, part.bits)):
            raise broken("padding bits are set")
        places = unpack(chosen, part.width, part.kept)
        if shown(disordered(places, part.size)):
            raise broken("indices do not increase within the tensor")
        sent.append((rows, places, _decoded(unpack(code, part.bits, part.kept), table, out.dtype)))
    for rows, places, values in sent:
        rows.scatter_add_(1, places, values * alpha)


def check_chunktopk(
    positions: Tensor, codes: Tensor, means: Tensor, d: int, chunking: Chunking, most: float
) -> Fault:
    """Positions must increase within their chunks, and means be finite."""
    found = [check_values(means, most, faults.MEAN_NOT_FINITE)]
    parts = _parts(d, positions, codes, means, chunking)
    for (_, _, part), (chosen, code, _) in zip(_spans(d, chunking), parts, strict=True):
        found.append(check_padding(chosen, part.kept, part.width))
        found.append(check_padding(code, part.kept, part.bits))
        unsorted = disordered(unpack(chosen, part.width, part.kept), part.size)
        found.append(unsorted.any().to(torch.int32) * faults.INDEX_ORDER)
    return faults.worst(*found)


def disordered(places: Tensor, size: int) -> Tensor:
    """Where positions do not increase along a row, or lie outside it."""
    return torch.cat([places.diff(dim=1) <= 0, places[:, -1:] >= size], 1)


def _parts(
    numel: int, positions: Tensor, codes: Tensor, means: Tensor, chunking: Chunking
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The packed positions, the packed codes and the means of each span, a row per chunk."""
    found = []
    for first, count, part in _spans(numel, chunking):
        packed = []
        for data, width in ((positions, part.width), (codes, part.bits)):
            start = first * chunking.packed(width)
            packed.append(data[start : start + count * part.packed(width)].view(count, -1))
        table = means[first * part.levels : (first + count) * part.levels].view(count, -1)
        found.append((packed[0], packed[1], table))
    return found
