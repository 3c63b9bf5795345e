"""Bases of the built-in methods: contiguous buffers, payloads of known size, and one pass over memory to encode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import kernels
from ..kernels import Kernels, Leave, Source
from ..kernels.check import payload_parts
from ..key import Key
from .base import Compressor, Context, Payload, narrow, work_dtype, working


class Codec(Compressor):
    """Base of the built-in methods: works on contiguous, flat float32 or float64 buffers.

    A method defines `spec`, `_encode` and `accumulate_` (`KernelCodec` does all in one pass); half-precision
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
        if out.numel():
            self.check(payload, out)
            self.accumulate_(out, payload, ctx)
        return narrow(out, ctx.dtype).view(ctx.shape)

    def combine_(self, out: Tensor, payloads: Sequence[Payload], ctx: Context) -> None:
        for payload in payloads:
            self.check(payload, out)
        super().combine_(out, payloads, ctx)

    def check(self, payload: Payload, out: Tensor) -> None:
        """Reject a payload whose tensors do not match `spec` for a result like `out`."""
        spec = self.spec(out.numel(), out.dtype)
        if spec is not None:
            payload_parts(payload, spec)

    def encode(self, tensor: Tensor, key: Key, out: Payload | None = None) -> tuple[Payload, Context]:
        ctx = Context(tensor.shape, tensor.dtype, key)
        if tensor.numel() == 0:
            return self.allocate(0, tensor.dtype, tensor.device), ctx
        return self._encode(tensor.view(-1), key, out), ctx

    def _encode(self, x: Tensor, key: Key, out: Payload | None) -> Payload:
        """Encode the flat, non-empty `x` without changing it; into `out` if given."""
        raise NotImplementedError

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        raise NotImplementedError

    def allocate(self, numel: int, dtype: torch.dtype, device: torch.device | None = None) -> Payload:
        """New payload tensors for `numel` elements (fixed-size methods)."""
        spec = self.spec(numel, dtype) or ()
        return [torch.empty(count, dtype=kind, device=device) for kind, count in spec]


class KernelCodec(Codec):
    """A codec with one encoding kernel, `_run`.

    A method defines `spec` (or `allocate`, if sizes vary), `_run`, and for decoding `_add`, or `accumulate_` if the
    kernel takes no factor.
    """

    leaves: ClassVar[Leave] = "residual"
    """What the kernel can store in its input; anything else is computed from the payload."""

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        """Encode a non-empty source into `out` and return it; if sizes vary, return a new payload."""
        raise NotImplementedError

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        """`out += alpha * decode(payload)`, for a non-empty tensor."""
        decoded = torch.zeros_like(out)
        self.accumulate_(decoded, payload, ctx)
        out.add_(decoded, alpha=alpha)

    def encode(self, tensor: Tensor, key: Key, out: Payload | None = None) -> tuple[Payload, Context]:
        return self.encode_from(Source(tensor), key, out)

    def encode_from(self, source: Source, key: Key, out: Payload | None = None) -> tuple[Payload, Any]:
        x, leave = source.x, source.leave
        if leave != "input" and leave != self.leaves:
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

    The two values are known only after all elements were read, so subtracting them from the residual would take a
    second pass over memory. It is deferred to the next step, which reads the residual anyway.
    """

    leaves = "deferred"
    deferred = 2
