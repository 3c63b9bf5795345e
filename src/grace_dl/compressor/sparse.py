"""Shared by the sparsifiers: sums that touch only the sent elements, and checks of settings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from ..kernels import Kernels
from ..kernels.check import announced
from ..kernels.faults import Fault
from ..kernels.wire import Sent, index_bytes
from ..settings import choice, number
from .base import Context, Payload
from .codec import KernelCodec

VALUE_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class SparseCodec(KernelCodec):
    """Base of methods whose payload has few elements: decoding scales those instead of the whole result."""

    def combine_(self, out: Tensor, payloads: Sequence[Payload], ctx: Context) -> None:
        for payload in payloads:
            self.check(payload, out.numel(), out.dtype)
        if out.numel() == 0:
            return
        kernels.of(out).clear_(out)
        share = 1.0 / len(payloads) if self.average else 1.0
        for payload in payloads:
            self._add(out, payload, ctx, share)

    def chosen(self, numel: int) -> int | None:
        """How many of `numel` elements a payload holds at most; None if that depends on the data."""
        return None

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of single values of a gradient of working dtype `dtype` on the wire."""
        return dtype

    def elements(self, payload: Payload, ctx: Context) -> tuple[Tensor, Tensor]:
        """The positions of a payload's elements, in ascending order, and their values."""
        out = torch.zeros(ctx.numel, dtype=ctx.dtype, device=payload[0].device)
        self.accumulate_(out, payload, ctx)
        positions = out.nonzero().view(-1)
        return positions, out[positions]


class IndexedCodec(SparseCodec):
    """Base of methods that send values and coded indices."""

    def _sent(self, payload: Payload, numel: int, dtype: torch.dtype) -> Sent:
        """Values, coded indices and their number, with checked sizes."""
        raise NotImplementedError

    def chosen(self, numel: int) -> int | None:
        spec = self.spec(numel, torch.float32)
        return None if spec is None else spec[0][1]

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self.allocate(0, dtype)[0].dtype

    def elements(self, payload: Payload, ctx: Context) -> tuple[Tensor, Tensor]:
        values, index, number = self._sent(payload, ctx.numel, ctx.dtype)
        count = announced(values, number)
        return kernels.of(index).decode_indices(index, ctx.numel, values.numel(), count), values[:count]

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        return kernel.check_sparse(payload[0], payload[1], ctx.numel, most)

    def settle_(
        self,
        vs: Sequence[Tensor],
        ms: Sequence[Tensor] | None,
        payloads: Sequence[Payload],
        ctxs: Sequence[Context],
    ) -> None:
        sent = [self._sent(payload, v.numel(), v.dtype) for v, payload in zip(vs, payloads)]
        kernels.of(vs[0]).dgc_commit_(vs, ms, sent)

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        values, index, count = self._sent(payload, out.numel(), out.dtype)
        kernels.of(out).sparse_add(out, values, index, alpha, announced(values, count))

    def combine_(self, out: Tensor, payloads: Sequence[Payload], ctx: Context) -> None:
        self.combine_all_([out], [payloads], [ctx])

    def combine_all_(
        self, outs: Sequence[Tensor], payloads: Sequence[Sequence[Payload]], ctxs: Sequence[Context]
    ) -> None:
        filled, sent = [], []
        for out, of_ranks in zip(outs, payloads):
            numel, dtype = out.numel(), out.dtype
            if numel:
                filled.append(out)
                sent.append([self._sent(payload, numel, dtype) for payload in of_ranks])
        if filled:
            share = 1.0 / len(sent[0]) if self.average else 1.0
            kernels.of(filled[0]).sparse_combine_(filled, sent, share)


class ElementsCodec(IndexedCodec):
    """Any number of elements, as values and coded indices: what is left of a payload when some of it is not sent."""

    def pack(self, positions: Tensor, values: Tensor, numel: int) -> Payload:
        """The payload of the elements at `positions`, in ascending order, among `numel`."""
        count = positions.numel()
        index = torch.empty(index_bytes(numel, count), dtype=torch.uint8, device=values.device)
        kernels.of(index).encode_indices(positions, numel, count, index)
        return [values.contiguous(), index]

    def _sent(self, payload: Payload, numel: int, dtype: torch.dtype) -> Sent:
        values, index = payload
        return values, index, None


def check_ratio(ratio: float) -> float:
    """Validate a ratio, the share of elements that a sparsifier sends."""
    why = "the share of elements that is sent, for example 0.01 for one in a hundred"
    return number("ratio", ratio, why, above=0, most=1)


def check_value_dtype(name: str | None) -> str | None:
    """The dtype of sent values; None for that of the gradient."""
    why = "what values travel in; None is the gradient's own dtype"
    return choice("value_dtype", name, (*VALUE_DTYPES, None), why)


def value_dtype(name: str | None, dtype: torch.dtype) -> torch.dtype:
    """The dtype of the sent values of a gradient of working dtype `dtype`."""
    return dtype if name is None else VALUE_DTYPES[name]
