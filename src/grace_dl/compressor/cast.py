"""Casts to a 16-bit float, shared by fp16 and bf16."""

from __future__ import annotations

import functools
from typing import ClassVar

import torch
from torch import Tensor

from .. import kernels
from ..kernels import Kernels, Source
from ..kernels.faults import Fault
from ..key import Key
from .base import Context, Payload, Spec
from .codec import KernelCodec


class CastCompressor(KernelCodec):
    """Sends a 16-bit float per element. Payloads can be summed.

    If payloads are summed, each rank sends its share of the mean, so that the sum does not overflow unless the mean
    does. `accumulate_` then decodes that share.
    """

    sums = True
    elementwise = True
    whole_bucket = True
    divides_first = True
    kind: ClassVar[torch.dtype]
    largest: ClassVar[float]

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((self.kind, numel),)

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        workers = shares(key)
        kernel.cast_encode(source, workers, limit(self.kind, self.largest, workers), out[0])
        return out

    def residual_(self, tensor: Tensor, payload: Payload, ctx: Context) -> None:
        self.check(payload, tensor.numel(), tensor.dtype)
        tensor.sub_(payload[0].view_as(tensor).to(tensor.dtype), alpha=shares(ctx.key))

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        return kernel.check_values(payload[0], most)

    def _accumulate(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).cast_add(out, payload[0])


def shares(key: Key) -> int:
    """The divisor applied to values before they are sent."""
    return key.workers if key.summed else 1


@functools.cache
def limit(kind: torch.dtype, largest: float, workers: int) -> float:
    """The largest value of this dtype that `workers` ranks can send without overflow of their sum."""
    if workers == 1:
        return largest
    share = torch.tensor(largest / workers, dtype=torch.float64)
    rounded = share.to(kind)
    if float(rounded) > float(share):
        rounded = torch.nextafter(rounded, torch.zeros_like(rounded))
    return float(rounded)
