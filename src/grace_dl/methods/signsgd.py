"""signSGD with majority vote."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec
from ..compressor.codec import BucketCodec
from ..kernels import Kernels, Source
from ..kernels.faults import Fault
from ..kernels.wire import Payloads, packed_bytes
from ..key import Key
from ..registry import register


class SignCompressor(BucketCodec):
    """One sign bit per element, and a flag for tensors that are not all zero; decoded by majority vote.

    The decoded signs have no scale, so there is nothing to average and no error to feed back.
    """

    leaves = "compensated"
    elementwise = True

    def __init__(self) -> None:
        super().__init__()
        self.average = False

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((torch.uint8, packed_bytes(numel, 1)), (torch.uint8, 1))

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        kernel.sign_encode(source, key.word(), *out)
        return out

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        return kernel.check_codes(payload[1], 1, 8, 1)

    def _accumulate(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        kernels.of(out).sign_add(out, *payload)

    def combine_(self, out: Tensor, payloads: Sequence[Payload], ctx: Context) -> None:
        self._combine_filled([out], [payloads], [ctx])

    def _combine(
        self, kernel: Kernels, outs: Sequence[Tensor], payloads: Payloads, ctxs: Sequence[Context]
    ) -> None:
        """The majority of the ranks whose tensor is not zero; ties take a random sign, the same on all ranks."""
        kernel.sign_combine_(outs, payloads, [ctx.key.shared_word("tie") for ctx in ctxs])


@register(
    "signsgd", family="signs", bits="1", reference="Bernstein 2018, ICML", memories=("none",), dense_below=0
)
class SignSGDCompressor(SignCompressor):
    """Signs, combined by majority vote over workers; the result is 1 or -1, or 0 where all gradients are 0.

        result = sign(Σ sign(g)) over workers

    Ties take a random sign, the same on all ranks.
    """
