"""Compiled dynamic-tree and natural compression."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

import grace_dl._native as _native

from ..check import broken, checked_scale
from ..reference import tables as reference
from ..source import Source
from ..wire import NATURAL_BLOCK, NATURAL_EXPONENTS, blocks
from .pointer import address, inputs, native_dtype, part_address, threads

__all__ = ["natural_add", "natural_encode", "u8bit_add", "u8bit_encode"]


LOWEST, FINENESS = -21, 6
"""The search has an entry for each cell from 2**LOWEST to 1, a cell being an exponent and this many mantissa bits."""


@functools.cache
def tree(dtype: torch.dtype) -> tuple[tuple[int, int], tuple[Tensor, ...]]:
    """Addresses of magnitudes and of the search's entries, and the tensors that own them.

    No cell holds two middles. An entry is, in units above the `fine` bits that a cell leaves of a number and one more, how
    many middles lie below the cell, and below that what these bits are added to: they carry where the number exceeds the
    middle inside. Without one nothing carries.

    Callers hold the tensors while a kernel reads them: where two threads come first at once, each makes its own, and the
    cache keeps those of one.
    """
    values, middle = reference.tree(dtype, torch.device("cpu"))
    cells = torch.arange(-LOWEST * 2**FINENESS + 1)
    edges = torch.ldexp(1 + (cells % 2**FINENESS) / 2**FINENESS, cells // 2**FINENESS + LOWEST)
    starts = torch.searchsorted(middle, edges.to(dtype))
    inside = starts.diff(append=starts[-1:])
    assert starts[0] == 0
    assert int(inside.max()) <= 1
    integer, fine = (torch.int32, 23 - FINENESS) if dtype == torch.float32 else (torch.int64, 52 - FINENESS)
    nearest = middle[starts.clamp(max=middle.numel() - 1)].view(integer).long()
    none = torch.full_like(nearest, 1 << fine)
    beyond = torch.where(inside == 1, nearest & ((1 << fine) - 1), none)
    entries = ((starts + 1 << fine + 1) - 1 - beyond).to(integer)
    return (values.data_ptr(), entries.data_ptr()), (values, entries)


def u8bit_encode(source: Source, codes: Tensor, scale: Tensor) -> None:
    x = source.x
    wide = native_dtype(x)
    if wide is None:
        return reference.u8bit_encode(source, codes, scale)
    n = x.numel()
    code, top = part_address(codes, torch.uint8, n), part_address(scale, x.dtype, 1)
    at, _owners = tree(x.dtype)
    _native.u8bit_encode(wide, *inputs(source, n), *at, code, top, threads())


def u8bit_add(out: Tensor, codes: Tensor, scale: Tensor) -> None:
    wide = native_dtype(out)
    if wide is None:
        return reference.u8bit_add(out, codes, scale)
    n = out.numel()
    code = part_address(codes, torch.uint8, n)
    where = address(out, out.dtype, n)
    top = checked_scale(scale, out.dtype)
    at, _owners = tree(out.dtype)
    _native.u8bit_add(wide, where, n, at[0], code, top, threads())


def natural_encode(source: Source, word: int, codes: Tensor, bases: Tensor) -> None:
    x = source.x
    wide = native_dtype(x)
    if wide is None:
        return reference.natural_encode(source, word, codes, bases)
    n = x.numel()
    code, exponents = (
        part_address(codes, torch.uint8, n),
        part_address(bases, torch.int16, blocks(n, NATURAL_BLOCK)),
    )
    _native.natural_encode(wide, *inputs(source, n), word, code, exponents, threads())


def checked_bases(bases: Tensor, n: int, dtype: torch.dtype) -> int:
    """The address of the exponents of a payload of `n` elements of `dtype`, all within its range."""
    exponents = part_address(bases, torch.int16, blocks(n, NATURAL_BLOCK))
    low, high = NATURAL_EXPONENTS[dtype]
    if not _native.exponents_within(exponents, bases.numel(), low, high):
        raise broken(f"the largest exponent of a block is outside {low}…{high}")
    return exponents


def natural_add(out: Tensor, codes: Tensor, bases: Tensor) -> None:
    wide = native_dtype(out)
    if wide is None:
        return reference.natural_add(out, codes, bases)
    n = out.numel()
    code, exponents = part_address(codes, torch.uint8, n), checked_bases(bases, n, out.dtype)
    _native.natural_add(wide, address(out, out.dtype, n), n, code, exponents, threads())
