"""The frame of a sparse all-reduce: uncompressed values, selected values with their indices, and flags, tightly packed.

Among many ranks a frame holds a few elements, so that alignment and flags matter.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import kernels
from ..kernels.faults import Fault, worst
from ..kernels.wire import Sent, index_bytes
from ..pipeline.frame import align


class SparseParts(NamedTuple):
    """Views of the parts of a frame."""

    dense: Tensor
    values: Tensor
    number: Tensor
    """How many values there are, one int32; zeros follow."""
    indices: Tensor
    flags: Tensor
    """Four flags a byte."""

    @property
    def sent(self) -> Sent:
        return self.values, self.indices, self.number


class SparseFrame:
    """The layout of a frame with `dense` uncompressed values, at most `capacity` elements of `universe`, and flags."""

    def __init__(
        self,
        dense: tuple[torch.dtype, int],
        values: torch.dtype,
        capacity: int,
        universe: int,
        flags: int,
    ) -> None:
        self.capacity, self.universe, self.flags = capacity, universe, flags
        parts = (
            dense,
            (values, capacity),
            (torch.int32, 1),
            (torch.uint8, index_bytes(universe, capacity)),
            (torch.uint8, -(-flags // 4)),
        )
        self._places: list[tuple[int, int, torch.dtype]] = []
        cursor = 0
        for dtype, count in parts:
            cursor = -(-cursor // dtype.itemsize) * dtype.itemsize
            self._places.append((cursor, cursor + dtype.itemsize * count, dtype))
            cursor += dtype.itemsize * count
        self.nbytes = align(cursor)

    def parts(self, buffer: Tensor) -> list[SparseParts]:
        """The parts of all frames in a buffer."""
        return [
            SparseParts(*(frame[start:stop].view(dtype) for start, stop, dtype in self._places))
            for frame in buffer.split(self.nbytes)
        ]

    def write(self, parts: SparseParts, places: Tensor, values: Tensor) -> None:
        """Write elements, whose places increase, into a frame of zeros."""
        count = values.numel()
        parts.values[:count].copy_(values)
        parts.number.fill_(count)
        kernels.of(parts.indices).encode_indices(places, self.universe, self.capacity, parts.indices)

    def fault(self, parts: SparseParts, most: float) -> Fault:
        """Check a peer's frame, but for its flags; no value may be larger than `most`."""
        kernel = kernels.of(parts.values)
        found = kernel.check_values(parts.dense, most)
        if not self.capacity:
            return found
        return worst(
            found, kernel.check_sparse(parts.values, parts.indices, self.universe, most, parts.number)
        )


def pack_flags(flags: Tensor) -> Tensor:
    """Flags of two bits, four a byte.

    >>> pack_flags(torch.tensor([1, 2, 3, 0, 1])).tolist()
    [57, 1]
    """
    padded = torch.nn.functional.pad(flags.to(torch.uint8), (0, -flags.numel() % 4)).view(-1, 4)
    return (padded << _shifts(flags)).sum(1, dtype=torch.uint8)


def unpack_flags(packed: Tensor, count: int) -> Tensor:
    """The first `count` flags of each row of packed ones.

    >>> unpack_flags(torch.tensor([[57, 1]], dtype=torch.uint8), 5).tolist()
    [[1, 2, 3, 0, 1]]
    """
    return ((packed.unsqueeze(-1) >> _shifts(packed)) & 3).flatten(-2)[..., :count]


def _shifts(like: Tensor) -> Tensor:
    return torch.arange(0, 8, 2, dtype=torch.uint8, device=like.device)
