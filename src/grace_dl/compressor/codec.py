"""Methods with one encoding kernel, which forms the input, encodes it and leaves the residual in one pass over memory."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import kernels
from ..kernels import Kernels, Leave, Source
from ..key import Key
from .base import Codec, Context, Payload


class KernelCodec(Codec):
    """A codec with one encoding kernel, `_run`.

    A method defines `spec` (or `allocate`, where sizes vary), `_run`, and to decode `_add`, or `accumulate_` where the
    kernel takes no factor.
    """

    leaves: ClassVar[Leave] = Leave.RESIDUAL
    """What the kernel can leave in its input; anything else is computed from the payload."""

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        """Encode a source that is not empty into `out`, and return it; or, where sizes vary, the payload that was made."""
        raise NotImplementedError

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        """`out += alpha * decode(payload)`, on a tensor that is not empty."""
        decoded = torch.zeros_like(out)
        self.accumulate_(decoded, payload, ctx)
        out.add_(decoded, alpha=alpha)

    def encode(self, tensor: Tensor, key: Key, out: Payload | None = None) -> tuple[Payload, Context]:
        return self.encode_from(Source(tensor), key, out)

    def encode_from(self, source: Source, key: Key, out: Payload | None = None) -> tuple[Payload, Any]:
        x, leave = source.x, source.leave
        if leave is not Leave.INPUT and leave is not self.leaves:
            return super().encode_from(source, key, out)
        ctx, numel = Context(x.shape, x.dtype, key), x.numel()
        payload = self.allocate(numel, x.dtype, x.device) if out is None or not numel else out
        return self._run(kernels.of(x), source, key, payload) if numel else payload, ctx

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        if out.numel():
            self._add(out, payload, ctx, 1.0)

    def residual_(self, tensor: Tensor, payload: Payload, ctx: Context) -> None:
        if tensor.numel():
            self._add(tensor, payload, ctx, -1.0)


class DeferredResidualCodec(KernelCodec):
    """Methods that send signs, decoded to one value where negative and another elsewhere.

    Those values are known only after all elements were read, so taking what was sent out of the residual would cost a
    second pass over memory. It waits for the next step, which reads the residual anyway: until then the two values are owed.
    """

    leaves = Leave.DEFERRED
    deferred = 2
