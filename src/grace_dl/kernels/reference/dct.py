"""The largest coefficients of the cosine transform of chunks of 64 x 64 elements; plain torch.

The transform is orthonormal. It is computed in float64 by Lee's algorithm (1984), every operation rounded, so that all backends
get the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import faults
from ..check import broken, payload_part, shown
from ..faults import Fault
from ..source import Source
from ..wire import DCT_SIDE, DCT_WIDTH, DctLayout, dct_factors, packed_bytes
from .basic import formed
from .bits import pack, unpack
from .chunks import disordered, largest_of_rows
from .sparse import narrow_values
from .validity import check_padding, check_values

__all__ = ["check_dct", "dct_add", "dct_encode"]

LARGE, DOWN = 2.0**800, 2.0**-200
"""Chunks with larger elements are scaled down by a power of two: sums of the transform could overflow."""


class Span(NamedTuple):
    """Chunks of one size: rows of each, coefficients sent of each, and where their positions and values are."""

    rows: int
    kept: int
    chunks: int
    begin: int
    """The first element, if the span is a rest that is padded with zeros; otherwise -1."""
    positions: slice
    values: slice

    @property
    def size(self) -> int:
        return self.rows * DCT_SIDE


def _spans(numel: int, layout: DctLayout) -> Iterator[Span]:
    full, (rows, kept) = numel // DCT_SIDE**2, layout.rest(numel)
    places, values = full * packed_bytes(layout.kept, DCT_WIDTH), full * layout.kept
    if full:
        yield Span(DCT_SIDE, layout.kept, full, -1, slice(0, places), slice(0, values))
    if rows:
        yield Span(rows, kept, 1, full * DCT_SIDE**2, slice(places, None), slice(values, None))


def _chunks(v: Tensor, span: Span, layout: DctLayout) -> Tensor:
    """A view of the elements of full chunks, a chunk after another: (…, 64, 64)."""
    if layout.columns:
        return v.view(-1, DCT_SIDE, layout.columns // DCT_SIDE, DCT_SIDE).transpose(1, 2)
    return v[: span.chunks * span.size].view(-1, DCT_SIDE, DCT_SIDE)


def _read(v: Tensor, span: Span, layout: DctLayout) -> Tensor:
    if span.begin >= 0:
        return pad(v[span.begin :], (0, span.begin + span.size - v.numel())).view(1, span.rows, DCT_SIDE)
    return _chunks(v, span, layout).reshape(span.chunks, DCT_SIDE, DCT_SIDE)


def _add(v: Tensor, span: Span, layout: DctLayout, added: Tensor) -> None:
    if span.begin >= 0:
        v[span.begin :].add_(added.reshape(-1)[: v.numel() - span.begin])
    else:
        chunks = _chunks(v, span, layout)
        chunks.add_(added.reshape(chunks.shape))


def _factors(n: int, like: Tensor) -> Tensor:
    return torch.tensor(dct_factors()[n // 2 - 1 : n - 1], dtype=torch.float64, device=like.device)


def _scale(x: Tensor) -> Tensor:
    """The factors that make the transform along the last dimension orthonormal."""
    n = x.shape[-1]
    scale = torch.full((n,), 2.0 / n, dtype=torch.float64, device=x.device)
    scale[0] = 1.0 / n
    return scale.sqrt_()


def _cosines(x: Tensor) -> Tensor:
    """The sums of x[j] cos((2 j + 1) k pi / 2 n) over j, along the last dimension."""
    n = x.shape[-1]
    if n == 1:
        return x
    a, b = x[..., : n // 2], x.flip(-1)[..., : n // 2]
    odd = _cosines((a - b) * _factors(n, x))
    out = torch.empty_like(x)
    out[..., 0::2] = _cosines(a + b)
    out[..., 1::2] = torch.cat([odd[..., :-1] + odd[..., 1:], odd[..., -1:]], -1)
    return out


def _elements(y: Tensor) -> Tensor:
    """The sums of y[k] cos((2 j + 1) k pi / 2 n) over k, along the last dimension."""
    n = y.shape[-1]
    if n == 1:
        return y
    odd = y[..., 1::2]
    even = _elements(y[..., 0::2])
    odd = _elements(torch.cat([odd[..., :1], odd[..., 1:] + odd[..., :-1]], -1)) * _factors(n, y)
    return torch.cat([even + odd, (even - odd).flip(-1)], -1)


def _transformed(x: Tensor) -> Tensor:
    """The coefficients of chunks (count, rows, 64), by columns and then by rows."""
    columns = x.transpose(1, 2).contiguous()
    columns = _cosines(columns) * _scale(columns)
    rows = columns.transpose(1, 2).contiguous()
    return _cosines(rows) * _scale(rows)


def _restored(y: Tensor) -> Tensor:
    """The chunks of coefficients (count, rows, 64)."""
    rows = _elements(y * _scale(y))
    columns = rows.transpose(1, 2).contiguous()
    return _elements(columns * _scale(columns)).transpose(1, 2)


def _scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """Chunks in float64, scaled down where they are very large, and the factor that undoes it."""
    x = x.double()
    peak = x.abs().amax((1, 2), keepdim=True)
    down = torch.ones_like(peak).masked_fill_(peak > LARGE, DOWN)
    return x * down, 1 / down


def _decoded(coefficients: Tensor, alpha: float = 1.0) -> Tensor:
    y, back = _scaled(coefficients)
    return _restored(y) * back * alpha


def dct_encode(source: Source, layout: DctLayout, positions: Tensor, values: Tensor) -> None:
    """Select the coefficients of largest magnitude of each chunk; of equal ones the first."""
    v, ef = formed(source)
    for span in list(_spans(v.numel(), layout)):
        x, back = _scaled(_read(v, span, layout))
        most = torch.finfo(v.dtype).max
        coefficients = (_transformed(x) * back).clamp(-most, most).to(v.dtype).view(span.chunks, span.size)
        chosen = largest_of_rows(coefficients, span.kept)
        sent = values[span.values].view(span.chunks, span.kept)
        narrow_values(coefficients.gather(1, chosen), sent)
        positions[span.positions] = pack(chosen, DCT_WIDTH).view(-1)
        if ef:
            kept = torch.zeros_like(coefficients).scatter_(1, chosen, sent.to(v.dtype))
            _add(v, span, layout, -_decoded(kept.view(x.shape)).to(v.dtype))


def dct_add(out: Tensor, payloads: Sequence[Sequence[Tensor]], layout: DctLayout, alpha: float = 1.0) -> None:
    """`out += alpha * decoded`, of the sum of several ranks' coefficients; all are checked first."""
    flat = out.view(-1)
    for positions, values in payloads:
        for part, (dtype, numel) in zip((positions, values), layout.spec(flat.numel(), values.dtype)):
            payload_part(part, dtype, numel)
        fault = check_dct(positions, values, flat.numel(), layout, float("inf"))
        if isinstance(fault, int) or shown(fault):
            raise broken(faults.MESSAGES[int(fault)])
    for span in list(_spans(flat.numel(), layout)):
        total = torch.zeros(span.chunks, span.size, dtype=torch.float64, device=out.device)
        for positions, values in payloads:
            chosen = _positions(positions, span)
            total.scatter_add_(1, chosen, values[span.values].double().view(span.chunks, span.kept))
        added = _decoded(total.view(span.chunks, span.rows, DCT_SIDE), alpha).to(out.dtype)
        _add(flat, span, layout, added)


def _packed(positions: Tensor, span: Span) -> Tensor:
    return positions[span.positions].view(span.chunks, -1)


def _positions(positions: Tensor, span: Span) -> Tensor:
    # Those of a broken payload, which is reported in the end, stay within the chunk.
    return unpack(_packed(positions, span), DCT_WIDTH, span.kept).clamp(max=span.size - 1)


def check_dct(positions: Tensor, values: Tensor, d: int, layout: DctLayout, most: float) -> Fault:
    """Positions must increase within their chunks, and values be finite."""
    found = [check_values(values, min(most, torch.finfo(values.dtype).max))]
    for span in _spans(d, layout):
        packed = _packed(positions, span)
        found.append(check_padding(packed, span.kept, DCT_WIDTH))
        unsorted = disordered(unpack(packed, DCT_WIDTH, span.kept), span.size)
        found.append(unsorted.any().to(torch.int32) * faults.INDEX_ORDER)
    return faults.worst(*found)
