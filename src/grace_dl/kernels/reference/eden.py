"""EDEN: random rotation, then a few bits per coordinate (Vargaftik 2022); plain torch.

A block of n = 2^m coordinates is rotated by H D2 H D1, with H the Hadamard matrix and D random signs. Two rounds
instead of the usual one, because after one a block with a single large element has coordinates of one magnitude,
whose quantisation carries no information about the small elements, so the estimate would be biased.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..check import broken, payload_part, shown
from ..source import Source
from ..wire import EDEN_BLOCK, EDEN_CENTROIDS, eden_sizes, eden_tail
from .basic import formed
from .bits import pack, unpack
from .randomness import draws
from .reduce import halve

__all__ = ["eden_add", "eden_encode"]

LANES = 32
SECOND = 0x9E3779B97F4A7C15
"""Separates the signs of the second round from those of the first."""


def _groups(d: int) -> list[tuple[int, int, int, int]]:
    """(first element, elements, rows, block size) of runs of equal blocks."""
    full = d // EDEN_BLOCK
    groups = [(0, full * EDEN_BLOCK, full, EDEN_BLOCK)] if full else []
    first = full * EDEN_BLOCK
    for length, size in eden_tail(d):
        groups.append((first, length, 1, size))
        first += length
    return groups


def _signs(word: int, first: int, rows: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """+1 or -1 for coordinates first.. : bit c % 32 of draw c // 32."""
    words = draws(word, torch.arange(first // 32, (first + rows * n) // 32, device=device))
    bits = (words.view(-1, 1) >> torch.arange(32, device=device)) & 1
    return (1 - 2 * bits).to(dtype).view(rows, n)


def _hadamard_(y: Tensor) -> Tensor:
    """The unnormalised Walsh-Hadamard transform of each row, butterflies from the nearest to the farthest."""
    rows, n = y.shape
    h = 1
    while h < n:
        pairs = y.view(rows, n // (2 * h), 2, h)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        y = torch.stack((a + b, a - b), dim=2).view(rows, n)
        h *= 2
    return y


def _row_sum(terms: Tensor) -> Tensor:
    """Sum of each row in a fixed order: 32 running sums, then halving."""
    lanes = terms[:, :LANES].clone()
    for first in range(LANES, terms.shape[1], LANES):
        lanes += terms[:, first : first + LANES]
    return halve(lanes).view(-1, 1)


def _levels(bits: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """All centroids in rising order, and the boundaries half-way between them."""
    half = torch.tensor(EDEN_CENTROIDS[bits], dtype=torch.float64, device=device)
    centroids = torch.cat((-half.flip(0), half))
    return centroids, (centroids[1:] + centroids[:-1]) / 2


def _power(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """2^exponent exactly, for exponents of normal numbers."""
    if dtype == torch.float64:
        return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)
    return ((exponent.to(torch.int32) + 127) << 23).view(torch.float32)


def _exponent(peak: Tensor) -> Tensor:
    """The power of two the rows are scaled down by, so that no sum of the transform can overflow."""
    limits = (-1000, 1000) if peak.dtype == torch.float64 else (-120, 126)
    return torch.frexp(peak).exponent.clamp(*limits)


def _decoded(codes: Tensor, word: int, first: int, centroids: Tensor, scale: Tensor) -> Tensor:
    """scale * D1 H D2 H q, row by row."""
    rows, n = codes.shape
    z = _hadamard_(centroids.to(scale.dtype)[codes])
    z = _hadamard_(z * _signs(word ^ SECOND, first, rows, n, scale.dtype, codes.device))
    return z * _signs(word, first, rows, n, scale.dtype, codes.device) * scale


def eden_encode(
    source: Source, bits: int, least_squares: bool, word: int, codes: Tensor, scales: Tensor
) -> None:
    """Rotate and quantise each block, and scale it by |x|^2 / <R x, q>, which is unbiased (Vargaftik 2022, theorem 2.1).

    `least_squares`: by <R x, q> / |q|^2 instead, which has the smallest error, but a bias.
    """
    x = source.x
    v, ef = formed(source)
    centroids, edges = _levels(bits, x.device)
    first = block = 0
    for start, length, rows, n in _groups(x.numel()):
        y = torch.zeros(rows * n, dtype=x.dtype, device=x.device)
        y[:length] = v[start : start + length]
        y = y.view(rows, n)
        exponent = _exponent(y.abs().amax(1, keepdim=True))
        y = y * _power(-exponent, x.dtype)
        norm = _row_sum(y.double() * y.double())
        y = _hadamard_(y * _signs(word, first, rows, n, x.dtype, x.device))
        y = _hadamard_(y * _signs(word ^ SECOND, first, rows, n, x.dtype, x.device))
        limits = (torch.sqrt(norm * n) * edges).to(x.dtype)
        code = torch.zeros(rows, n, dtype=torch.int64, device=x.device)
        for j in range(edges.numel()):
            code += y >= limits[:, j : j + 1]
        q = centroids[code]
        dot = _row_sum(y.double() * q)
        # The rotation is not normalised: Rᵀ R is n².
        ratio = dot / (_row_sum(q * q) * float(n * n)) if least_squares else norm / dot
        ratio = torch.where(dot > 0, ratio, torch.zeros_like(dot))
        scale = (ratio * _power(exponent, torch.float64)).to(scales.dtype)
        scales[block : block + rows] = scale.view(-1)
        codes[first * bits // 8 : (first + rows * n) * bits // 8] = pack(code.view(-1), bits)
        if ef:
            sent = _decoded(code, word, first, centroids, scale).view(-1)
            v[start : start + length] -= sent[:length]
        first += rows * n
        block += rows


def eden_add(out: Tensor, codes: Tensor, scales: Tensor, bits: int, word: int, alpha: float = 1.0) -> None:
    """`out += alpha * decoded`."""
    coordinates, blocks = eden_sizes(out.numel())
    payload_part(codes, torch.uint8, coordinates * bits // 8)
    payload_part(scales, out.dtype, blocks)
    if shown(~(scales.isfinite() & (scales >= 0))):
        raise broken("a scale is negative or not finite")
    centroids, _ = _levels(bits, out.device)
    flat = out.view(-1)
    first = block = 0
    for start, length, rows, n in _groups(out.numel()):
        code = unpack(codes[first * bits // 8 : (first + rows * n) * bits // 8], bits, rows * n).view(rows, n)
        sent = _decoded(code, word, first, centroids, scales[block : block + rows].view(-1, 1))
        flat[start : start + length] += sent.view(-1)[:length] * alpha
        first += rows * n
        block += rows
