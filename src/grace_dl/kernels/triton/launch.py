"""Launching: supported tensors, device selection and parameter passing."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import torch
import triton
from torch import Tensor

from ...errors import ConfigError, UnsupportedError
from ..source import Source
from .programs import common

INTERPRETED = not isinstance(common.form, triton.JITFunction)
"""Whether kernels run in Triton's interpreter: `TRITON_INTERPRET=1` was set when Triton was imported."""

TILE = 1024
"""Default number of elements per program."""

WIDEST = 8192
"""The longest block that a program can hold; longer ones fall back to the reference."""

_SERVED = (torch.float32, torch.float64)


def ready(device: str) -> None:
    """Raise unless kernels can run on tensors of this device type."""
    if device == "cpu" and not INTERPRETED:
        raise ConfigError(
            "GRACE_KERNELS='triton' was given a tensor on the CPU, where Triton only runs in its interpreter; "
            "set TRITON_INTERPRET=1 before the program starts (for tests: it is slow), or unset GRACE_KERNELS."
        )


def runs(x: Tensor) -> bool:
    """Whether kernels run on the device of `x`."""
    return x.is_cuda or (x.is_cpu and INTERPRETED)


def serves(x: Tensor) -> bool:
    """Whether the kernels support tensors like `x`; others, and empty ones, fall back to the reference."""
    return x.dtype in _SERVED and x.is_contiguous() and x.numel() > 0 and runs(x)


def beside(x: Tensor, *others: Tensor | None) -> None:
    """Raise unless the other tensors are contiguous and on the device of `x`: their addresses are not checked later."""
    for other in others:
        if other is not None and (other.device != x.device or not other.is_contiguous()):
            raise UnsupportedError(
                f"a kernel was given a tensor on {x.device} and a "
                f"{'contiguous' if other.is_contiguous() else 'strided'} one on {other.device}; all tensors of one "
                "call must be contiguous on one device."
            )


def inputs(source: Source) -> tuple[Any, ...]:
    """The leading arguments of every encoder: both tensors (x again if there is no gradient) and the coefficients."""
    x, grad, beta, gamma, *_ = source
    if grad is not None and (grad.dtype is not x.dtype or grad.numel() != x.numel()):
        raise UnsupportedError(
            f"a kernel was given {x.numel()} elements of {x.dtype} and a second tensor of {grad.numel()} elements of "
            f"{grad.dtype}; the two must match."
        )
    beside(x, grad)
    return (x, x if grad is None else grad, *scalars(beta), *scalars(gamma))


def scalars(value: float) -> tuple[int, int]:
    """A float64 as two int32 halves, low first."""
    return struct.unpack("<ii", struct.pack("<d", value))


def float_bits(value: float) -> int:
    """The bits of a float64, for a constant of a program: a float would be rounded to float32."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def halves(word: int) -> tuple[int, int]:
    """64 bits as two int32 halves, low first: the type does not depend on the value, which avoids recompilation."""
    return struct.unpack("<ii", struct.pack("<Q", word & 0xFFFFFFFFFFFFFFFF))


def tiles(n: int, tile: int = TILE) -> int:
    """How many programs cover `n` elements."""
    return -(-n // tile)


def run(kernel: Any, grid: int | tuple[int, ...], x: Tensor, *arguments: Any, **constants: Any) -> None:
    """Launch on the device of `x`, with products and sums rounded separately."""
    shape = (grid,) if isinstance(grid, int) else grid
    # Triton launches on the current device, whatever device its arguments are on.
    with torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext():
        kernel[shape](*arguments, **constants, enable_fp_fusion=False)
