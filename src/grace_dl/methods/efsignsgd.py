"""EF-signSGD: signs with a scale, error feedback in units of the step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec, work_dtype
from ..compressor.codec import DeferredResidualCodec
from ..kernels import Kernels, Source
from ..kernels.faults import Fault
from ..kernels.wire import Payloads, packed_bytes
from ..key import Key
from ..registry import register
from ..settings import number

LEARNING_RATE = 0.1
"""Default of `lr` in the compressor and in its memory, which must agree."""


def checked_rate(lr: float) -> float:
    """`lr` as a float; anything but a positive, finite number is rejected."""
    why = f"the learning rate that the optimizer uses; {LEARNING_RATE} is the default"
    return number("lr", lr, why, above=0)


@register("efsignsgd", family="signs", bits="1", reference="Karimireddy 2019, ICML", memories=("efsignsgd",))
class EFSignSGDCompressor(DeferredResidualCodec):
    """Sends mean(abs x) * sign(x) of x = e + lr * g; the result is the mean over workers divided by lr.

        Q(x) = mean|x| · sign(x)

    lr: the learning rate of the optimizer; the residual is stored in units of its step.
    """

    elementwise = True

    def __init__(self, lr: float = LEARNING_RATE) -> None:
        super().__init__()
        self.lr = checked_rate(lr)

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, packed_bytes(numel, 1)), (work_dtype(dtype), 1))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        kernel.scaled_sign_encode(source, *out)
        return out

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        return kernel.check_scales(payload[1], most * min(1.0, self.lr))

    def _accumulate(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).scaled_sign_add(out, *payload)

    def _divisor(self, workers: int) -> float:
        return workers * self.lr

    def _combine(
        self, kernel: Kernels, outs: Sequence[Tensor], payloads: Payloads, ctxs: Sequence[Context]
    ) -> None:
        kernel.scaled_sign_combine_(outs, payloads, self._divisor(len(payloads[0])))
