"""Checks of a peer's payload that change nothing and need no copy from a device; plain torch.

They cover what the decoders check, and that values are finite. `check` returns errors, these return numbers (`faults`).
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from .. import faults
from ..faults import Fault
from ..wire import is_bitmap
from .bits import spare_bits, unpack
from .indices import entries

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


def _found(bad: Tensor, fault: int) -> Tensor:
    return bad.any().to(torch.int32) * fault


def _first(*found: Tensor) -> Tensor:
    """The first fault that is not zero."""
    result = found[-1]
    for fault in found[-2::-1]:
        result = torch.where(fault != 0, fault, result)
    return result


@functools.lru_cache
def _bound(most: float, dtype: torch.dtype) -> float:
    """The largest number of `dtype` that is at most `most`, so that comparing in that dtype is exact.

    >>> _bound(1e9, torch.float16), _bound(0.1, torch.float16)
    (65504.0, 0.0999755859375)
    """
    bound = torch.tensor(min(most, torch.finfo(dtype).max), dtype=dtype)
    return float(torch.nextafter(bound, torch.zeros_like(bound)) if float(bound) > most else bound)


def check_values(values: Tensor, most: float, fault: int = faults.VALUE_NOT_FINITE) -> Fault:
    """Values must be finite."""
    if not values.numel():
        return 0
    top = torch.linalg.vector_norm(values, math.inf)  # NaN if there is one
    return torch.where(
        top <= _bound(most, values.dtype), 0, torch.where(top < math.inf, faults.RESULT_NOT_FINITE, fault)
    )


def _large(values: Tensor, most: float) -> Tensor:
    return _found(values.abs() > most, faults.RESULT_NOT_FINITE)


def check_scales(scales: Tensor, most: float) -> Fault:
    """Scales must be finite and not negative."""
    return _first(_found(~((scales >= 0) & torch.isfinite(scales)), faults.SCALE), _large(scales, most))


def check_means(means: Tensor, most: float) -> Fault:
    """The two means of a 1-bit payload: the first not positive, the second not negative, both finite."""
    low, high = means[:1], means[1:]
    bad = ~((low <= 0) & (high >= 0) & torch.isfinite(low) & torch.isfinite(high))
    return _first(_found(bad, faults.MEANS), _large(means, most))


def check_codes(codes: Tensor, n: int, bits: int, most: int, mask: int = 0xFFFF) -> Fault:
    """The first `n` codes of `bits` bits must be at most `most` in the bits of `mask`."""
    return _found((unpack(codes, bits, n) & mask) > most, faults.CODE)


def check_padding(codes: Tensor, n: int, bits: int) -> Fault:
    """Spare bits of the last byte must be zero."""
    return _found(spare_bits(codes, n, bits), faults.PADDING_BITS)


def check_exponents(exponents: Tensor, low: int, high: int, most: int) -> Fault:
    """Exponents must be between `low` and `high`."""
    bad = (exponents < low) | (exponents > high)
    return _first(_found(bad, faults.EXPONENT), _found(exponents > most, faults.RESULT_NOT_FINITE))


def check_sparse(values: Tensor, index: Tensor, d: int, most: float, count: Tensor | None = None) -> Fault:
    """Values must be finite, and zero behind the announced ones; indices must increase within `d` elements."""
    k = values.numel()
    sound = [_indices(index, d, k, k if count is None else count.view(()).to(torch.int64))]
    if count is not None:
        behind = torch.arange(k, device=values.device) >= count
        sound.insert(0, _found((count < 0) | (count > k), faults.COUNT))
        sound.insert(1, _found(behind & (values != 0), faults.STRAY_VALUES))
    fault = check_values(values, most)
    return _first(*sound, fault) if isinstance(fault, Tensor) else _first(*sound)


def _indices(index: Tensor, d: int, k: int, count: int | Tensor) -> Tensor:
    """Faults of `k` coded indices of which `count` are announced."""
    if k == 0:
        return torch.zeros((), dtype=torch.int32, device=index.device)
    indices, total, spare = entries(index, d, k)
    padding = _found(spare, faults.PADDING_BITS)
    if is_bitmap(d, k):
        return _first(padding, _found(total != count, faults.INDEX_COUNT))
    if isinstance(count, int) and count == k:  # no padding
        order = (indices[1:] <= indices[:-1]).any() | (indices[-1:] >= d).any()
        return _first(padding, _found(total != k, faults.INDEX_COUNT), _found(order, faults.INDEX_ORDER))
    behind = torch.arange(k, device=index.device) >= count
    falling = (indices[1:] <= indices[:-1]) & ~behind[1:]
    order = falling.any() | ((indices >= d) & ~behind).any()
    return _first(
        padding,
        _found(total != k, faults.INDEX_COUNT),
        _found(order, faults.INDEX_ORDER),
        _found(behind & (indices != d - 1), faults.INDEX_PADDING),
    )


def check_adaq(
    means: Tensor, counts: Tensor, index: Tensor, signs: Tensor, d: int, slots: int, most: float
) -> Fault:
    """Numbers of elements, means, signs and indices of AdaQ must agree."""
    wide = counts.to(torch.int64)
    count = wide.sum()
    side = unpack(signs, 1, slots)
    behind = torch.arange(slots, device=side.device) >= count
    marked = (side.sum() != wide[1]) | (side.bool() & behind).any() | spare_bits(signs, slots, 1).any()
    return _first(
        _found((wide < 0).any() | (count > slots), faults.COUNT),
        _found(~torch.isfinite(means), faults.MEAN_NOT_FINITE),
        _found(marked, faults.SIGN_COUNT),
        _indices(index, d, slots, count),
        _large(means, most),
    )


def check_inceptionn(tags: Tensor, sizes: tuple[int, int, int], raw: Tensor, d: int, most: float) -> Fault:
    """The classes must have the sizes that the tags say; raw values must be finite."""
    tag = unpack(tags, 2, d)
    wrong = [(tag == number + 1).sum() != size for number, size in enumerate(sizes)]
    return _first(
        _found(spare_bits(tags, d, 2), faults.PADDING_BITS),
        _found(torch.stack(wrong), faults.CLASS_SIZES),
        _found(~torch.isfinite(raw), faults.VALUE_NOT_FINITE),
        _large(raw, most),
    )
