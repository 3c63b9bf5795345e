"""The exchange of a bucket as a list of stages, computed from its layout without any data: what the cost model reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .bucket import Bucket, Segment
from .request import Request


class Load(NamedTuple):
    """Tensors and elements to encode or decode, and how many payloads are combined into each."""

    tensors: int = 0
    elements: int = 0
    payloads: int = 1


NOTHING = Load()


@dataclass(frozen=True, slots=True)
class Stage:
    """What a rank decodes and encodes before it issues a request; the last stage of a bucket issues none."""

    request: Request | None
    decode: Load = NOTHING
    encode: Load = NOTHING


Estimate = Callable[[int], int]
"""Expected payload bytes for a number of elements, for methods whose payload size depends on the data."""


def blank(count: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """A tensor that has a size but no data."""
    return torch.empty(count, dtype=dtype, device="meta")


def blank_bucket(
    parameters: Iterable[tuple[str, tuple[int, ...], torch.dtype]], *, whole: bool = True
) -> Bucket:
    """A bucket of parameters (name, shape, dtype) that have no data; `whole`: they lie in one buffer.

    >>> blank_bucket([("w", (4, 3), torch.float32), ("b", (4,), torch.float32)]).nbytes
    64
    """
    segments = []
    for name, shape, dtype in parameters:
        view = torch.empty(shape, dtype=dtype, device="meta")
        segments.append(Segment(name, view.view(-1), view))
    total = sum(segment.flat.numel() for segment in segments)
    return Bucket("outline", segments, blank(total, segments[0].flat.dtype) if whole else None)


def load_of(segments: Iterable[Segment]) -> Load:
    """The load of encoding each segment once."""
    counts = [segment.flat.numel() for segment in segments]
    return Load(len(counts), sum(counts))
