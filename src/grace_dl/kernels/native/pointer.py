"""Checked conversion of tensors to raw pointers.

Reading attributes of a tensor costs a tenth of a microsecond; converting it in the binding costs several.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import UnsupportedError
from ..check import payload_part
from ..source import Leave, Source

__all__ = ["address", "inputs", "native_dtype", "pairs", "part_address", "threads"]

_WIDE = {torch.float32: False, torch.float64: True}
threads = torch.get_num_threads


def native_dtype(x: Tensor) -> bool | None:
    """False for float32, True for float64, None if the compiled kernels do not support `x`."""
    return _WIDE.get(x.dtype) if x.is_cpu else None


def address(x: Tensor, dtype: torch.dtype, numel: int) -> int:
    """The address of a contiguous CPU tensor of this dtype and length; anything else raises."""
    if x.dtype is not dtype or x.numel() != numel or not x.is_cpu or not x.is_contiguous():
        raise UnsupportedError(
            f"a kernel was given {x.numel()} elements of {x.dtype} on {x.device} "
            f"({'contiguous' if x.is_contiguous() else 'strided'}), where {numel} contiguous elements of {dtype} "
            "on the CPU belong; all tensors of one call must match."
        )
    return x.data_ptr()


def pairs(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> tuple[list[int], list[int], list[int]] | None:
    """Addresses and lengths of several tensors for one call; None unless all have the same kind."""
    dtype = xs[0].dtype
    if any(t.dtype is not dtype or not t.is_cpu or not t.is_contiguous() for t in (*xs, *ys)):
        return None
    sizes = [x.numel() for x in xs]
    return [x.data_ptr() for x in xs], [address(y, dtype, n) for y, n in zip(ys, sizes, strict=True)], sizes


def part_address(part: Tensor, dtype: torch.dtype, numel: int) -> int:
    """The address of a payload tensor; a wrong dtype or length raises `PayloadError`."""
    if part.dtype is dtype and part.numel() == numel and part.is_cpu and part.is_contiguous():
        return part.data_ptr()
    payload_part(part, dtype, numel)
    return address(part, dtype, numel)


def inputs(source: Source, n: int, leave: Leave = "residual") -> tuple[int, int, int, float, float, bool]:
    """The leading arguments of every compiled encoder that can store `leave`; address 0 means no gradient."""
    x, grad, beta, gamma, _, _ = source
    other = 0 if grad is None else address(grad, x.dtype, n)
    return address(x, x.dtype, n), other, n, beta, gamma, source.leaves(leave)
