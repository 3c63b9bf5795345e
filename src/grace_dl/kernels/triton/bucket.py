"""Launches for all tensors of a bucket and the payloads of all ranks at once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ..wire import Payloads
from .launch import TILE, beside, run, scalars, serves, tiles

DTYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


def together(outs: Sequence[Tensor]) -> bool:
    """Whether the kernels support these tensors in one launch."""
    return all(serves(out) and out.dtype is outs[0].dtype for out in outs)


@functools.lru_cache(256)
def numbers_on(device: torch.device, numbers: tuple[int, ...]) -> Tensor:
    """Numbers on the device, copied without waiting. Addresses repeat from step to step: most calls copy nothing."""
    return torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)


def run_table(
    kernel: Any, lines: Sequence[Sequence[int]], programs: int, x: Tensor, *more: Any, **constants: Any
) -> None:
    """Launch a program over the lines of a table."""
    table = numbers_on(x.device, tuple(chain.from_iterable(lines)))
    sizes = {"COLUMNS": len(lines[0]), "LINES": 1 << (len(lines) - 1).bit_length(), "TILE": TILE}
    run(kernel, programs, x, table, len(lines), *more, **sizes, **constants)


def run_bucket(
    kernel: Any,
    outs: Sequence[Tensor],
    payloads: Payloads,
    divisor: float | None,
    words: Sequence[int] = (),
    **constants: Any,
) -> None:
    """Launch a program that overwrites `outs`; with a divisor, if it takes one."""
    words = words or [0] * len(outs)
    counts = [tiles(out.numel()) for out in outs]
    lines = []
    for out, of_ranks, word, first in zip(outs, payloads, words, accumulate(counts, initial=0)):
        line = [first, out.data_ptr(), out.numel(), word - (1 << 64) if word >> 63 else word]
        for parts in of_ranks:
            beside(out, *parts)
            line += [part.data_ptr() for part in parts]
        lines.append(line)
    constants["DTYPE"] = DTYPES[outs[0].dtype]
    more: tuple[int, ...] = (len(payloads[0]),)
    if divisor is not None:
        constants["DIVIDE"] = divisor != 1
        more += scalars(divisor)
    run_table(kernel, lines, sum(counts), outs[0], *more, **constants)
