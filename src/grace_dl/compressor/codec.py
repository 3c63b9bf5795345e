"""Bases of the built-in methods: contiguous buffers, payloads of known size, and one pass over memory to encode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import kernels
from ..kernels import Kernels, Leave, Source
from ..kernels.check import payload_parts
from ..kernels.faults import Fault
from ..kernels.wire import Payloads
from ..key import Key
from .base import Compressor, Context, Payload, narrow, work_dtype, working


class Codec(Compressor):
    """Base of the built-in methods: works on contiguous, flat float32 or float64 buffers.

    A method defines `spec`, `_encode`, `_faults` and `_accumulate` (`KernelCodec` does all in one pass); half-precision
    inputs are widened here, shapes and dtypes restored here.
    """

    layout_free = True

    def __init__(self) -> None:
        super().__init__()

    def compress(self, tensor: Tensor, name: str) -> tuple[Payload, Context]:
        key = Key(name)
        payload, _ = self.encode(working(tensor), key)
        return payload, Context(tensor.shape, tensor.dtype, key)

    def decompress(self, payload: Payload, ctx: Context) -> Tensor:
        device = payload[0].device if payload else None
        out = torch.zeros(ctx.numel, dtype=work_dtype(ctx.dtype), device=device)
        self.accumulate_(out, payload, ctx)
        return narrow(out, ctx.dtype).view(ctx.shape)

    def check(self, payload: Payload, numel: int, dtype: torch.dtype) -> None:
        """Reject a payload whose tensors do not match `spec` for `numel` elements of `dtype`."""
        spec = self.spec(numel, dtype)
        if spec is not None:
            payload_parts(payload, spec)

    def faults(self, payload: Payload, ctx: Context) -> Fault:
        numel, dtype = ctx.numel, work_dtype(ctx.dtype)
        self.check(payload, numel, dtype)
        if not numel:
            return 0
        most = torch.finfo(dtype).max / (1 if ctx.key.summed else ctx.key.workers)
        found = self._faults(kernels.of(payload[0]), payload, ctx, most)
        return super().faults(payload, ctx) if found is None else found

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault | None:
        """Check the contents of a payload of the right sizes; None: decoding it will tell.

        No decoded element may be larger than `most`, or the sum over ranks may overflow.
        """
        return None

    def encode(self, tensor: Tensor, key: Key, out: Payload | None = None) -> tuple[Payload, Context]:
        ctx = Context(tensor.shape, tensor.dtype, key)
        if tensor.numel() == 0:
            return self.allocate(0, tensor.dtype, tensor.device), ctx
        return self._encode(tensor.view(-1), key, out), ctx

    def _encode(self, x: Tensor, key: Key, out: Payload | None) -> Payload:
        """Encode the flat, non-empty `x` without changing it; into `out` if given."""
        raise NotImplementedError

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        self.check(payload, out.numel(), out.dtype)
        if out.numel():
            self._add(out, payload, ctx, 1.0)

    def residual_(self, tensor: Tensor, payload: Payload, ctx: Context) -> None:
        self.check(payload, tensor.numel(), tensor.dtype)
        if tensor.numel():
            self._add(tensor, payload, ctx, -1.0)

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        """`out += alpha * decode(payload)`, for a non-empty tensor and a payload of the right sizes."""
        if alpha == 1:
            return self._accumulate(out, payload, ctx)
        decoded = torch.zeros_like(out)
        self.accumulate_(decoded, payload, ctx)
        out.add_(decoded, alpha=alpha)

    def _accumulate(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        """`out += decode(payload)`, if the kernel takes no factor."""
        raise NotImplementedError

    def allocate(self, numel: int, dtype: torch.dtype, device: torch.device | None = None) -> Payload:
        """New payload tensors for `numel` elements (fixed-size methods)."""
        spec = self.spec(numel, dtype) or ()
        return [torch.empty(count, dtype=kind, device=device) for kind, count in spec]


class KernelCodec(Codec):
    """A codec with one encoding kernel, `_run`.

    A method defines `spec` (or `allocate` and `check`, if sizes vary), `_run`, `_faults`, and for decoding `_add`, or
    `_accumulate` if the kernel takes no factor.
    """

    leaves: ClassVar[Leave] = "residual"
    """What the kernel can store in its input; anything else is computed from the payload."""

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        """Encode a non-empty source into `out` and return it; if sizes vary, return a new payload."""
        raise NotImplementedError

    def encode(self, tensor: Tensor, key: Key, out: Payload | None = None) -> tuple[Payload, Context]:
        return self.encode_from(Source(tensor), key, out)

    def encode_from(self, source: Source, key: Key, out: Payload | None = None) -> tuple[Payload, Any]:
        x, leave = source.x, source.leave
        if leave != "input" and leave != self.leaves:
            return super().encode_from(source, key, out)
        ctx, numel = Context(x.shape, x.dtype, key), x.numel()
        payload = self.allocate(numel, x.dtype, x.device) if out is None or not numel else out
        return self._run(kernels.of(x), source, key, payload) if numel else payload, ctx


class BucketCodec(KernelCodec):
    """Methods with a kernel that decodes all tensors of a bucket, and the payloads of all ranks, in one call: `_combine`."""

    def _combine(
        self, kernel: Kernels, outs: Sequence[Tensor], payloads: Payloads, ctxs: Sequence[Context]
    ) -> None:
        """Overwrite each of `outs`, none of which is empty, with the result of its payloads."""
        raise NotImplementedError

    def _divisor(self, workers: int) -> float:
        """What turns the sum over workers into the result."""
        return float(workers) if self.average else 1.0

    def finish_(self, out: Tensor, workers: int) -> None:
        divisor = self._divisor(workers)
        if divisor != 1:
            out.div_(divisor)

    def combine_(self, out: Tensor, payloads: Sequence[Payload], ctx: Context) -> None:
        if self._finishes_alone():
            super().combine_(out, payloads, ctx)
        else:
            self._combine_filled([out], [payloads], [ctx])

    def combine_all_(
        self, outs: Sequence[Tensor], payloads: Sequence[Sequence[Payload]], ctxs: Sequence[Context]
    ) -> None:
        if self._finishes_alone():
            super().combine_all_(outs, payloads, ctxs)
        else:
            self._combine_filled(outs, payloads, ctxs)

    def _finishes_alone(self) -> bool:
        """Whether a subclass combines or finishes in its own way."""
        return type(self).finish_ is not BucketCodec.finish_ or hasattr(self, "aggregate")

    def _combine_filled(
        self, outs: Sequence[Tensor], payloads: Sequence[Sequence[Payload]], ctxs: Sequence[Context]
    ) -> None:
        """`_combine` for the tensors that are not empty, with checked sizes."""
        filled = [place for place, out in enumerate(outs) if out.numel()]
        for place in filled:
            for payload in payloads[place]:
                self.check(payload, outs[place].numel(), outs[place].dtype)
        if filled:
            kernel = kernels.of(outs[filled[0]])
            chosen = [outs[place] for place in filled], [payloads[place] for place in filled]
            self._combine(kernel, *chosen, [ctxs[place] for place in filled])


class DeferredResidualCodec(BucketCodec):
    """Methods that send signs, decoded to one value where negative and another elsewhere.

    The two values are known only after all elements were read, so subtracting them from the residual would take a
    second pass over memory. It is deferred to the next step, which reads the residual anyway.
    """

    leaves = "deferred"
    deferred = 2
