"""Compiled: checks of a peer's payload that change nothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ... import _native
from .. import faults
from ..faults import Fault
from ..reference import validity as reference
from ..wire import index_bytes
from .basic import largest
from .pointer import native_dtype, part_address, threads
from .sparse import VALUE_KINDS

__all__ = [
    "check_adaq",
    "check_codes",
    "check_exponents",
    "check_inceptionn",
    "check_means",
    "check_padding",
    "check_scales",
    "check_sparse",
    "check_values",
]


def check_values(values: Tensor, most: float, fault: int = faults.VALUE_NOT_FINITE) -> Fault:
    """Values must be finite."""
    if not values.is_cpu:
        return reference.check_values(values, most, fault)
    top = largest(values)
    return 0 if top <= most else faults.RESULT_NOT_FINITE if top < math.inf else fault


def check_scales(scales: Tensor, most: float) -> Fault:
    """Scales must be finite and not negative."""
    wide, n = native_dtype(scales), scales.numel()
    if wide is None:
        return reference.check_scales(scales, most)
    at = part_address(scales, scales.dtype, n)
    if _native.scales_within(wide, at, most, n):
        return 0
    finite = _native.scales_within(wide, at, torch.finfo(scales.dtype).max, n)
    return faults.RESULT_NOT_FINITE if finite else faults.SCALE


def check_means(means: Tensor, most: float) -> Fault:
    """The two means of a 1-bit payload: the first not positive, the second not negative, both finite."""
    if not means.is_cpu:
        return reference.check_means(means, most)
    low, high = means.tolist()
    if not -math.inf < low <= 0 <= high < math.inf:
        return faults.MEANS
    return 0 if max(-low, high) <= most else faults.RESULT_NOT_FINITE


def check_codes(codes: Tensor, n: int, bits: int, most: int, mask: int = 0xFFFF) -> Fault:
    """The first `n` codes of `bits` bits must be at most `most` in the bits of `mask`."""
    if not codes.is_cpu:
        return reference.check_codes(codes, n, bits, most, mask)
    at = part_address(codes, torch.uint8, codes.numel())
    return 0 if _native.codes_within(at, n, bits, mask, most, threads()) else faults.CODE


def check_padding(codes: Tensor, n: int, bits: int) -> Fault:
    """Spare bits of the last byte must be zero."""
    if not codes.is_cpu:
        return reference.check_padding(codes, n, bits)
    spare = codes.numel() * 8 - n * bits
    return faults.PADDING_BITS if spare and int(codes[-1]) >> (8 - spare) else 0


def check_exponents(exponents: Tensor, low: int, high: int, most: int) -> Fault:
    """Exponents must be between `low` and `high`."""
    if not exponents.is_cpu:
        return reference.check_exponents(exponents, low, high, most)
    n = exponents.numel()
    at = part_address(exponents, torch.int16, n)
    if _native.exponents_within(at, n, low, min(high, most)):
        return 0
    return faults.RESULT_NOT_FINITE if _native.exponents_within(at, n, low, high) else faults.EXPONENT


def check_sparse(values: Tensor, index: Tensor, d: int, most: float, count: Tensor | None = None) -> Fault:
    """Values must be finite, and zero behind the announced ones; indices must increase within `d` elements."""
    kind, k = VALUE_KINDS.get(values.dtype), values.numel()
    if kind is None or not values.is_cpu:
        return reference.check_sparse(values, index, d, most, count)
    announced = k if count is None else int(count.item())
    if not 0 <= announced <= k <= d:
        return faults.COUNT
    at = part_address(values, values.dtype, k)
    code = part_address(index, torch.uint8, index_bytes(d, k))
    fault = _native.sparse_check(d, at, kind, k, announced, code, threads())
    return fault or check_values(values, most)


def check_adaq(
    means: Tensor, counts: Tensor, index: Tensor, signs: Tensor, d: int, slots: int, most: float
) -> Fault:
    """Numbers of elements, means, signs and indices of AdaQ must agree."""
    if not means.is_cpu:
        return reference.check_adaq(means, counts, index, signs, d, slots, most)
    positive, negative = counts.tolist()
    if min(positive, negative) < 0 or positive + negative > slots:
        return faults.COUNT
    code = part_address(index, torch.uint8, index_bytes(d, slots))
    marks = part_address(signs, torch.uint8, (slots + 7) // 8)
    fault = _native.adaq_check(d, slots, positive, negative, code, marks, threads())
    return fault or check_values(means, most, faults.MEAN_NOT_FINITE)


def check_inceptionn(tags: Tensor, sizes: tuple[int, int, int], raw: Tensor, d: int, most: float) -> Fault:
    """The classes must have the sizes that the tags say; raw values must be finite."""
    if not tags.is_cpu:
        return reference.check_inceptionn(tags, sizes, raw, d, most)
    at = part_address(tags, torch.uint8, tags.numel())
    return _native.inceptionn_check(d, at, *sizes, threads()) or check_values(raw, most)
