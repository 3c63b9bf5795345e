"""A compressed reduce-scatter, for sharded models: each rank gets the average of the slices it owns, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..compressor.base import work_dtype
from ..memory.none import NoneMemory
from ..pipeline.bucket import Bucket, Segment
from ..pipeline.driver import Program
from ..pipeline.frame import FAILED, NONFINITE, USED
from ..pipeline.request import Verdict
from .scatter import Piece, Scatter, Slices, place_of
from .transaction import BucketTransaction, finite, ordinary, peer_errors


class ReduceScatter(Scatter):
    """One phase: every slice is averaged by its owner, in float32.

    A segment is a matrix with a row for each rank. The result, which replaces it, is the average of this rank's row, in
    the working dtype.
    """

    name = "reduce-scatter"

    def owed(self, name: str) -> Tensor | None:
        rows = [self.memory.residual(key) for key in self.memory.keys_of(name)]
        found = [row.view(-1) for row in rows if row is not None]
        return torch.cat(found) if found else None

    def _pieces(self, bucket: Bucket, dense: Sequence[bool]) -> list[Piece]:
        return [
            Piece(place, f"{segment.name}#{rank}", 0, segment.flat.shape[1], rank, dense[place])
            for place, segment in enumerate(bucket.segments)
            for rank in range(self.transport.size)
        ]

    def _lay_out(self, bucket: Bucket, dense: Sequence[bool]) -> Slices:
        return self._slices(bucket, dense)

    def _whole(self, segment: Segment) -> Tensor:
        # Not `_input`, which copies matrices whose rows are not adjacent.
        grad = segment.flat.to(work_dtype(segment.flat.dtype))
        owed = self.state.owed(segment.name, grad)
        return grad if owed is None else grad + owed.to(grad.dtype).view(grad.shape)

    def _part(self, whole: Tensor, piece: Piece) -> Tensor:
        return whole[piece.owner]

    def _ordinary(self, bucket: Bucket) -> list[bool]:
        return [all(ordinary(row) for row in segment.flat) for segment in bucket.segments]

    def _finite(self, segment: Segment) -> bool:
        return all(finite(row) for row in segment.flat)

    def program(self, bucket: Bucket) -> Program:
        slices: Slices = self._plan(bucket).layout
        size, rank = self.transport.size, self.transport.rank
        transaction = BucketTransaction(self.transport)
        try:
            # Buffers live until their contents are decoded: in a sharded model, those of all modules would be too much.
            half = self._scatter_half(
                slices,
                torch.zeros(sum(slices.sizes), dtype=torch.uint8, device=bucket.device),
                torch.empty(size * slices.sizes[rank], dtype=torch.uint8, device=bucket.device),
            )
            swap = self._scatter(bucket, slices, half, transaction)
            if isinstance(self.memory, NoneMemory):
                _free(bucket)  # other memories need the gradient to roll back
            yield swap
            flags = self._arrived(slices, half, transaction, transaction.errors)
            averages = [
                self._average(bucket, slices, half, number, transaction) if flag == USED else None
                for number, flag in enumerate(flags)
            ]
            del half, swap
            errors = transaction.errors or peer_errors(flags)
            good = NONFINITE not in flags and FAILED not in flags
            commit = yield Verdict((), lambda codes: (good, errors))
        except BaseException:
            transaction.abort()
            raise
        for number, (piece, flag, average) in enumerate(zip(slices.owned[rank], flags, averages)):
            segment, good = bucket.segments[piece.place], commit and flag == USED
            if good:
                self.state.commit(segment.name)
            for owner in range(size):
                transaction.settle(place_of(owner, number), good)
            if average is None:
                average = segment.flat.new_full((piece.stop,), float("nan"), dtype=work_dtype(bucket.dtype))
            elif not piece.dense:
                self.memory.after_coded_([average], [piece.name], good)
            elif good:
                self.memory.after_dense_([average], [segment.name])
            segment.flat = segment.view = average


def _free(bucket: Bucket) -> None:
    """Drop the references to the gradients of a bucket."""
    for segment in bucket.segments:
        segment.flat = segment.view = segment.flat.new_empty(0)
