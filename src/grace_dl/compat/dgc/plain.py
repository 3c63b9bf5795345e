"""`Compression.none` and `Compression.fp16`: what DGC's scripts use instead of DGC."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ...algebra.base import Method
from ...algebra.named import build


class Compressor:
    """A precision that gradients travel in; the class or an object of it is given as `compression`."""

    method: ClassVar[Method]

    @staticmethod
    def compress(tensor: Tensor, name: str | None = None) -> tuple[Tensor, Any]:
        """The tensor to send, and what `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """What was sent, in its former dtype."""
        return tensor


class NoneCompressor(Compressor):
    """Gradients travel as they are."""

    method = build("none")


class FP16Compressor(Compressor):
    """Gradients travel in half precision."""

    method = build("fp16")

    @staticmethod
    def compress(tensor: Tensor, name: str | None = None) -> tuple[Tensor, Any]:
        return tensor.to(torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor.to(ctx)


class Compression:
    """The two by name."""

    none = NoneCompressor
    fp16 = FP16Compressor
