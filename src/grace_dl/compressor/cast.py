"""Casts to a 16-bit float, shared by fp16 and bf16."""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

import torch
from torch import Tensor

from .. import kernels
from ..kernels.check import payload_part
from ..key import Key
from .base import Context, Payload, Spec
from .fused import FusedCodec


class CastCompressor(FusedCodec):
    """Sends a 16-bit float an element. Payloads add up.

    `workers` is set by a communicator that sums payloads: each rank then sends its share of the mean, so that the
    sum cannot overflow where the mean would not. What `accumulate_` decodes is that share.
    """

    sums = True
    elementwise = True
    whole_bucket = True
    kind: ClassVar[torch.dtype]
    largest: ClassVar[float]
    divides_first = True

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((self.kind, numel),)

    def _fused(
        self,
        kernel: ModuleType,
        x: Tensor,
        g: Tensor | None,
        beta: float,
        gamma: float,
        ef: bool,
        key: Key,
        out: Payload,
    ) -> None:
        kernel.cast_encode(x, g, beta, gamma, ef, shares(key), self._limit(shares(key)), out[0])

    def _limit(self, workers: int) -> float:
        """The largest number of this kind that `workers` ranks may send without their sum overflowing."""
        if workers == 1:
            return self.largest
        share = torch.tensor(self.largest / workers, dtype=torch.float64)
        rounded = share.to(self.kind)
        if float(rounded) > float(share):
            rounded = torch.nextafter(rounded, torch.zeros_like(rounded))
        return float(rounded)

    def residual_(self, tensor: Tensor, payload: Payload, ctx: Context) -> None:
        tensor.sub_(payload[0].view_as(tensor).to(tensor.dtype), alpha=shares(ctx.key))

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        payload_part(payload[0], self.kind, out.numel())
        kernels.of(out).cast_add(out, payload[0])


def shares(key: Key) -> int:
    return key.workers if key.summed else 1
