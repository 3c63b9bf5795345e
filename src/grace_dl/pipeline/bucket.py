"""Gradients that are sent together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..kernels.check import has_memory


@dataclass(slots=True)
class Segment:
    """One parameter's gradient within a bucket; the result replaces it."""

    name: str
    flat: Tensor
    """Its elements in memory order, a 1-D view."""
    view: Tensor
    """The same memory as the parameter sees it."""
    used: bool = True
    """Whether this rank's backward pass reached the parameter; after the exchange, whether any rank's did."""


@dataclass(slots=True)
class Bucket:
    """Segments of one dtype, and the buffer that consists of exactly these in order, if any."""

    key: Hashable
    """Identifies the bucket across steps; its plan is replaced when its content changes."""
    segments: Sequence[Segment]
    flat: Tensor | None = None
    compress_all: bool = False
    """Compress small parameters too."""

    @property
    def dtype(self) -> torch.dtype:
        return self.segments[0].flat.dtype

    @property
    def device(self) -> torch.device:
        return self.segments[0].flat.device

    @property
    def nbytes(self) -> int:
        return sum(s.flat.numel() * s.flat.element_size() for s in self.segments)


def single(tensor: Tensor, name: str) -> Bucket:
    """A bucket that holds a copy of one tensor."""
    check(tensor, name)
    flat = tensor.detach().reshape(-1).clone()
    return Bucket(("tensor", name), [Segment(name, flat, flat.view(tensor.shape))], flat, compress_all=True)


def packed(key: Hashable, names: Sequence[str], tensors: Sequence[Tensor], unit: int = 1) -> Bucket:
    """A bucket with memory of its own that holds copies of tensors; each starts at a multiple of `unit` elements."""
    for name, tensor in zip(names, tensors, strict=True):
        check(tensor, name)
    sizes = [-(-tensor.numel() // unit) * unit for tensor in tensors]
    buffer = torch.empty(sum(sizes), dtype=tensors[0].dtype, device=tensors[0].device)
    segments = []
    for name, tensor, part in zip(names, tensors, buffer.split(sizes)):
        flat = part[: tensor.numel()]
        view = flat.view(tensor.shape)
        view.copy_(tensor)
        segments.append(Segment(name, flat, view))
    return Bucket(key, segments, buffer if unit == 1 else None)


def check(tensor: Tensor, name: str) -> None:
    """Reject gradients that cannot be compressed."""
    if not has_memory(tensor):
        raise UnsupportedError(
            f"the gradient of {name!r} is a {type(tensor).__name__}, which has no memory of its own to compress; pass "
            "plain tensors. For a model sharded by FSDP2, attach to the model instead of its optimizer."
        )
    if tensor.layout is not torch.strided:
        raise UnsupportedError(
            f"the gradient of {name!r} is sparse ({tensor.layout}), which no method here compresses; "
            "build the layer with sparse=False, or keep the parameter out of this exchange."
        )
    if not tensor.is_floating_point():
        raise UnsupportedError(
            f"{name!r} has dtype {tensor.dtype}; gradients must be float16, bfloat16, float32 or float64 (make a complex "
            "parameter from real numbers, with torch.view_as_complex)."
        )


T = TypeVar("T")


def fill(
    items: Iterable[T], limit: int, kind: Callable[[T], Hashable], weigh: Callable[[T], int]
) -> list[list[T]]:
    """Group items of one kind into buckets in the given order; a bucket is closed once it reaches `limit` bytes.

    >>> fill(["a", "bb", "c", "d"], 3, kind=lambda item: None, weigh=len)
    [['a', 'bb'], ['c', 'd']]
    """
    buckets: list[list[T]] = []
    open_: dict[Hashable, tuple[list[T], int]] = {}
    for item in items:
        bucket, weight = open_.get(kind(item), ([], 0))
        if not bucket:
            buckets.append(bucket)
        bucket.append(item)
        weight += weigh(item)
        open_[kind(item)] = ([], 0) if weight >= limit else (bucket, weight)
    return buckets
