"""`Compression.none` and `Compression.fp16`, which DGC's scripts use instead of DGC."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ...algebra.base import Method
from ...algebra.named import build


class Compressor:
    """The precision in which gradients are sent; pass the class or an instance as `compression`."""

    method: ClassVar[Method]

    @staticmethod
    def compress(tensor: Tensor, name: str | None = None) -> tuple[Tensor, Any]:
        """The tensor to send, and the context for `decompress`."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """The received tensor in its original dtype."""
        return tensor


class NoneCompressor(Compressor):
    """Gradients are sent uncompressed."""

    method = build("none")


class FP16Compressor(Compressor):
    """Gradients are sent in half precision."""

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
