"""The exchange within a node: parameters are dealt out to the node's ranks by size, and each goes to its owner whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..key import Key
from ..memory.base import Memory
from ..memory.none import NoneMemory
from ..pipeline.bucket import Bucket, Segment
from ..pipeline.frame import UNUSED, USED
from .scatter import Half, Piece, Scatter, Slices
from .transaction import BucketTransaction


class Owners(Memory):
    """Which rank of a node owns each parameter. An owner is kept, so that state stays where it is when buckets change.

    For each parameter: its owner, this rank's node and number within it, the ranks of a node, and the parameter's size.
    """

    def __init__(self, node: int, rank: int, size: int) -> None:
        super().__init__()
        self._place = node, rank, size

    def of(self, name: str) -> int | None:
        """The owner of a parameter, if it has one."""
        slots = self.state.get(name)
        return None if slots is None else int(slots["owner"][0])

    def dealt(self, sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
        """The owners of parameters, given with their sizes; new ones go to the rank that owns least, the largest first."""
        found: dict[str, int] = {}
        loads = [0] * self._place[2]
        for slots in self.state.values():
            owner, *_, numel = slots["owner"].tolist()
            loads[owner] += numel
        for name, numel in sorted(sizes, key=lambda item: -item[1]):
            known = self.of(name)
            if known is None:
                known = min(range(len(loads)), key=lambda rank: loads[rank])
                loads[known] += numel
            found[name] = known
        return found

    def keep(self, name: str, owner: int, numel: int) -> None:
        """Remember the owner of a parameter."""
        if name not in self.state:
            self.state[name] = {"owner": torch.tensor([owner, *self._place, numel])}


class NodeScatter(Scatter):
    """Sends every parameter of a bucket to its owner on the node, which averages it."""

    name = "node-scatter"
    refusal = "a slice of a tensor cannot be compressed on its own, or its size varies"

    def divide(self, bucket: Bucket, owners: Sequence[int]) -> Slices:
        """Which pieces of a bucket each rank of the node gets."""
        self._owners = owners
        return self._slices(bucket, self._dense_flags(bucket))

    def _pieces(self, bucket: Bucket, dense: Sequence[bool]) -> list[Piece]:
        return [
            Piece(place, segment.name, 0, segment.flat.numel(), self._owners[place], dense[place])
            for place, segment in enumerate(bucket.segments)
        ]

    def _is_dense(self, segment: Segment, bucket: Bucket) -> bool:
        # A lossless method sends gradients in their own dtype, and the owner adds them up in float32.
        plain = self.compressor.lossless and isinstance(self.memory, NoneMemory)
        return plain or super()._is_dense(segment, bucket)

    def release_dense(self, bucket: Bucket) -> None:
        """Carry over the residuals of parameters that are not compressed any more."""
        for segment, dense in zip(bucket.segments, self._dense_flags(bucket)):
            if dense and self.owed(segment.name) is not None:
                self.release(segment.name)

    def key(self, name: str, base: str | None = None) -> Key:
        # Ranks of different nodes draw different numbers.
        whole = getattr(self.transport, "whole", self.transport)
        return super().key(name, base)._replace(rank=whole.rank)

    def averages(
        self, bucket: Bucket, slices: Slices, half: Half, transaction: BucketTransaction, share: Bucket
    ) -> list[int]:
        """Average what has arrived into the segments of this rank's share; returns their flags.

        Segments that are not finite, or could not be compressed on some rank, become NaN.
        """
        flags = self._arrived(slices, half, transaction, transaction.errors)
        for number, (segment, flag) in enumerate(zip(share.segments, flags)):
            segment.used = flag != UNUSED
            if flag not in (USED, UNUSED):
                segment.flat.fill_(float("nan"))
                continue
            average = self._average(bucket, slices, half, number, transaction)
            if average.dtype == segment.flat.dtype:
                segment.flat.copy_(average)
            else:
                self._store(segment, average)
        return flags

    def halves(self, bucket: Bucket, slices: Slices) -> Half:
        """The buffers of the exchange of a bucket."""

        def empty(count: int) -> Tensor:
            return torch.zeros(count, dtype=torch.uint8, device=bucket.device)

        own = slices.frames[self.transport.rank]
        return self._scatter_half(slices, empty(sum(slices.sizes)), empty(self.transport.size * own.nbytes))
