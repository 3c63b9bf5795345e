"""Shared by the sparsifiers: sums that touch only the sent elements, and checks of settings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from ..kernels.wire import Sent
from ..settings import choice, number
from .base import Context, Payload
from .codec import KernelCodec

VALUE_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class SparseCodec(KernelCodec):
    """Base of methods whose payload has few elements: decoding scales those instead of the whole result."""

    def combine_(self, out: Tensor, payloads: Sequence[Payload], ctx: Context) -> None:
        if out.numel() == 0:
            return
        kernels.of(out).clear_(out)
        share = 1.0 / len(payloads) if self.average else 1.0
        for payload in payloads:
            self._add(out, payload, ctx, share)


class IndexedCodec(SparseCodec):
    """Base of methods that send values and coded indices."""

    def _sent(self, payload: Payload, numel: int, dtype: torch.dtype) -> Sent:
        """Values, coded indices and their number, with checked sizes."""
        raise NotImplementedError

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        values, index, count = self._sent(payload, out.numel(), out.dtype)
        kernels.of(out).sparse_add(out, values, index, alpha, count)

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
