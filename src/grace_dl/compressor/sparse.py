"""What the sparsifying methods share: one fused entry, sums that touch only what was sent, settings checked alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from ..errors import ConfigError, PayloadError
from ..kernels.reference.sparse import Sent
from ..key import Key
from .base import Codec, Context, Payload, Spec

VALUE_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class FlatCodec(Codec):
    """Base of methods with one kernel that takes flat tensors, forms the input, encodes it and leaves the residual.

    A method defines `spec` (or `allocate`, where sizes vary), `_run` and `_add`.
    """

    def _run(
        self, x: Tensor, g: Tensor | None, beta: float, gamma: float, ef: bool, key: Key, out: Payload | None
    ) -> Payload:
        """Encode v = x, or beta * x + gamma * g; leave v minus what is sent in `x` if `ef`, else `x` as it is."""
        raise NotImplementedError

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        """`out += alpha * decode(payload)`, on a flat tensor that is not empty."""
        raise NotImplementedError

    def _encode(self, x: Tensor, key: Key, out: Payload | None) -> Payload:
        return self._run(x, None, 1.0, 1.0, False, key, out)

    def encode_residual_(
        self,
        tensor: Tensor,
        grad: Tensor | None,
        key: Key,
        *,
        beta: float = 1.0,
        gamma: float = 1.0,
        out: Payload | None = None,
    ) -> tuple[Payload, Context]:
        ctx = Context(tensor.shape, tensor.dtype, key)
        if tensor.numel() == 0:
            return self.allocate(0, tensor.dtype, tensor.device), ctx
        grad = None if grad is None else grad.view(-1)
        return self._run(tensor.view(-1), grad, beta, gamma, True, key, out), ctx

    def accumulate_(self, out: Tensor, payload: Payload, ctx: Context) -> None:
        if out.numel():
            self._add(out if out.dim() == 1 else out.view(-1), payload, ctx, 1.0)

    def residual_(self, tensor: Tensor, payload: Payload, ctx: Context) -> None:
        if tensor.numel():
            self._add(tensor.view(-1), payload, ctx, -1.0)


class SparseCodec(FlatCodec):
    """Base of methods whose payload names few elements: decoding scales those instead of the whole result."""

    def combine_(self, out: Tensor, payloads: Sequence[Payload], ctx: Context) -> None:
        if out.numel() == 0:
            return
        out = out if out.dim() == 1 else out.view(-1)
        kernels.of(out).clear_(out)
        share = 1.0 / len(payloads) if self.average else 1.0
        for payload in payloads:
            self._add(out, payload, ctx, share)


class IndexedCodec(SparseCodec):
    """Base of methods that send values and coded indices."""

    def _sent(self, payload: Payload, numel: int, dtype: torch.dtype) -> Sent:
        """Values, coded indices and how many count, checked as far as sizes go."""
        raise NotImplementedError

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        values, index, count = self._sent(payload, out.numel(), out.dtype)
        kernels.of(out).sparse_add(out, values, index, alpha, count)

    def combine_(self, out: Tensor, payloads: Sequence[Payload], ctx: Context) -> None:
        self.combine_all_([out], [payloads], [ctx])

    def combine_all_(
        self, outs: Sequence[Tensor], payloads: Sequence[Sequence[Payload]], ctxs: Sequence[Context]
    ) -> None:
        flat, sent = [], []
        for out, of_ranks in zip(outs, payloads):
            numel, dtype = out.numel(), out.dtype
            if numel:
                flat.append(out if out.dim() == 1 else out.view(-1))
                sent.append([self._sent(payload, numel, dtype) for payload in of_ranks])
        if flat:
            share = 1.0 / len(sent[0]) if self.average else 1.0
            kernels.of(flat[0]).sparse_combine_(flat, sent, share)


def check_ratio(ratio: float) -> float:
    """A share of the elements, as every sparsifier takes it."""
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= 1:
        raise ConfigError(
            f"ratio={ratio!r} must be a number in (0, 1]: the share of elements that is sent, "
            "for example 0.01 for one in a hundred."
        )
    return float(ratio)


def kept(ratio: float, numel: int) -> int:
    """How many of `numel` elements are sent: ratio * numel rounded half up, at least one.

    >>> kept(0.3, 10), kept(0.001, 10), kept(0.25, 10), kept(0.5, 0)
    (3, 1, 3, 0)
    """
    return min(numel, max(1, math.floor(ratio * numel + 0.5)))


def check_value_dtype(name: str | None) -> str | None:
    """The dtype values travel in; None is that of the gradient."""
    if name is not None and not (isinstance(name, str) and name in VALUE_DTYPES):
        raise ConfigError(
            f"value_dtype={name!r} is unknown; choose one of {', '.join(VALUE_DTYPES)}, or None for the gradient's own."
        )
    return name


def value_dtype(name: str | None, dtype: torch.dtype) -> torch.dtype:
    """The dtype values of a gradient of working dtype `dtype` travel in."""
    return dtype if name is None else VALUE_DTYPES[name]


def check_parts(payload: Payload, spec: Spec) -> None:
    """Refuse a peer's payload whose tensors are not those that `spec` says."""
    found = tuple([(part.dtype, part.numel()) for part in payload])
    if found != spec:
        raise PayloadError(
            f"a payload holds {_describe(found)}, but {_describe(spec)} were expected: the peer uses another method, "
            "other settings or another tensor size."
        )


def _describe(parts: Sequence[tuple[torch.dtype, int]]) -> str:
    return ", ".join(f"{count} {str(dtype).removeprefix('torch.')}" for dtype, count in parts) or "nothing"
