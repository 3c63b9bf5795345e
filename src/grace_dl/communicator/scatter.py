"""The phase that all-to-all and reduce-scatter share: every slice goes to its owner, which decodes and averages it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Compressor, Payload, Spec, work_dtype
from ..kernels.faults import Fault
from ..pipeline.bucket import Bucket, Segment
from ..pipeline.frame import FAILED, NONFINITE, UNUSED, USED, FixedFrame, check_flags
from ..pipeline.request import Swap
from .inspection import Inspection
from .segments import SegmentCommunicator
from .transaction import BucketTransaction, finite, ordinary


@dataclass(slots=True)
class Piece:
    """A slice of a segment, and the rank that owns it."""

    place: int
    name: str
    start: int
    stop: int
    owner: int
    dense: bool


@dataclass(slots=True)
class Half:
    """One direction of the exchange: buffers, and views of flags and payloads by rank."""

    send: Tensor
    receive: Tensor
    mine: list[tuple[Tensor, list[Payload]]]
    theirs: list[tuple[Tensor, list[Payload]]]


@dataclass(slots=True)
class Slices:
    """How a bucket is divided: the same on every rank."""

    owned: list[list[Piece]]
    """The pieces of each owner, in order."""
    frames: list[FixedFrame]
    """The frame that each owner receives from every rank."""

    @property
    def sizes(self) -> list[int]:
        return [frame.nbytes for frame in self.frames]


class Scatter(SegmentCommunicator):
    """Sends the slices of every parameter to their owners."""

    refusal = "a slice of a tensor cannot be compressed on its own, or its size varies"

    @classmethod
    def carries(cls, compressor: type[Compressor]) -> bool:
        return compressor.elementwise and compressor.spec is not Compressor.spec

    # Layout -------------------------------------------------------------------------------------------

    def _pieces(self, bucket: Bucket, dense: Sequence[bool]) -> Iterable[Piece]:
        """The pieces of a bucket, in the order of its segments."""
        raise NotImplementedError

    def _slices(self, bucket: Bucket, dense: Sequence[bool]) -> Slices:
        owned: list[list[Piece]] = [[] for _ in range(self.transport.size)]
        for piece in self._pieces(bucket, dense):
            owned[piece.owner].append(piece)

        # Among many ranks most own nothing of a bucket, or pieces of equal sizes.
        frames: dict[tuple[tuple[int, bool], ...], FixedFrame] = {}

        def frame(pieces: Sequence[Piece]) -> FixedFrame:
            key = tuple((piece.stop - piece.start, piece.dense) for piece in pieces)
            if key not in frames:
                frames[key] = FixedFrame([self._piece_spec(bucket, *one) for one in key])
            return frames[key]

        return Slices(owned, [frame(pieces) for pieces in owned])

    def _piece_spec(self, bucket: Bucket, numel: int, dense: bool) -> Spec:
        if dense:
            return ((bucket.dtype, numel),)
        found = self.compressor.spec(numel, work_dtype(bucket.dtype))
        assert found is not None
        return found

    def _scatter_half(self, slices: Slices, send: Tensor, receive: Tensor) -> Half:
        """Views of a buffer with a frame for each owner, and of one with a frame from each rank."""
        own = slices.frames[self.transport.rank]
        return Half(
            send,
            receive,
            [views(frame, part) for frame, part in zip(slices.frames, send.split(slices.sizes))],
            [views(own, part) for part in receive.split(own.nbytes)],
        )

    # Exchange -----------------------------------------------------------------------------------------

    def _whole(self, segment: Segment) -> Tensor:
        """A segment's gradient, including the residual of a previous method; `_part` cuts pieces from it."""
        return self._input(segment).view(-1)

    def _part(self, whole: Tensor, piece: Piece) -> Tensor:
        return whole[piece.start : piece.stop]

    def _ordinary(self, bucket: Bucket) -> list[bool]:
        """Which gradients are finite and not large; on a device the host waits once."""
        flats = [segment.flat for segment in bucket.segments]
        if bucket.device.type == "cpu":
            return [ordinary(flat) for flat in flats]
        return [bool(one) for one in kernels.of(flats[0]).finite_each(flats).tolist()]

    def _finite(self, segment: Segment) -> bool:
        """Whether a gradient is finite."""
        return finite(segment.flat)

    def _scatter(self, bucket: Bucket, slices: Slices, half: Half, transaction: BucketTransaction) -> Swap:
        """Encode every piece for its owner; returns the request that sends them.

        Pieces of one segment have the same flag, so that the owner of one learns of a failure in another.
        """
        segments, rank = bucket.segments, self.transport.rank
        wholes = [self._whole(segment) for segment in segments]
        used = [USED if segment.used else UNUSED for segment in segments]
        small = self._ordinary(bucket)
        on_host = bucket.device.type == "cpu"
        sound = [good or (on_host and self._finite(s)) for good, s in zip(small, segments)]
        flags = [flag if good else NONFINITE for flag, good in zip(used, sound)]
        for owner, (pieces, (_, payloads)) in enumerate(zip(slices.owned, half.mine)):
            for number, (piece, out) in enumerate(zip(pieces, payloads)):
                segment, part = segments[piece.place], self._part(wholes[piece.place], piece)
                if flags[piece.place] not in (USED, UNUSED):
                    for tensor in out:
                        tensor.zero_()
                elif piece.dense:
                    out[0].copy_(part)
                else:
                    key = self.key(piece.name, base=segment.name)
                    where = place_of(owner, number)
                    # The residual of a previous method may be large.
                    known = small[piece.place] and segment.name not in self.state.carried
                    flag = transaction.begin(
                        where, self.memory, self.compressor, part, key, out, segment.used, known
                    )
                    flags[piece.place] = max(flags[piece.place], flag)
        for pieces, (header, _) in zip(slices.owned, half.mine):
            header.copy_(torch.tensor([flags[piece.place] for piece in pieces], dtype=torch.uint8))
        sizes = slices.sizes
        splits = [sizes[rank]] * self.transport.size
        return Swap(half.receive, half.send, splits, sizes, rank, read=True)

    def _arrived(
        self, slices: Slices, half: Half, transaction: BucketTransaction, errors: list[Exception]
    ) -> list[int]:
        """The combined flags of the pieces that this rank owns: the worst over all ranks.

        Payloads are checked; where one is not valid, the flag says so and `errors` why.
        """
        arrived = [flags.tolist() for flags, _ in half.theirs]
        for sender, flags in enumerate(arrived):
            errors += check_flags(flags, sender)
        combined = [min(max(of_ranks), FAILED) for of_ranks in zip(*arrived)]
        for number, piece in enumerate(slices.owned[self.transport.rank]):
            pending = transaction.find(place_of(piece.owner, number))
            if combined[number] in (USED, UNUSED):
                inspection = Inspection([piece.name], [])
                for rank, (_, payloads) in enumerate(half.theirs):
                    fault = self._fault(piece, payloads[number], pending and pending.ctx)
                    inspection.add(rank, 0, fault)
                combined[number] = inspection.flag(len(arrived), errors) or combined[number]
        return combined

    def _fault(self, piece: Piece, payload: Payload, ctx: Any) -> Fault:
        return self._dense_fault(payload[0]) if piece.dense else self.compressor.faults(payload, ctx)

    def _average(
        self, bucket: Bucket, slices: Slices, half: Half, number: int, transaction: BucketTransaction
    ) -> Tensor:
        """Decode and average what all ranks sent for a piece that this rank owns."""
        rank = self.transport.rank
        piece = slices.owned[rank][number]
        numel = piece.stop - piece.start
        average = torch.empty(numel, dtype=work_dtype(bucket.dtype), device=bucket.device)
        payloads = [payloads[number] for _, payloads in half.theirs]
        if piece.dense:
            average.copy_(payloads[0][0])
            for payload in payloads[1:]:
                average.add_(payload[0])
            average.div_(len(payloads))
        else:
            ctx = transaction.pending(place_of(rank, number)).ctx
            self.compressor.combine_(average, payloads, ctx)
        return average


def views(frame: FixedFrame, buffer: Tensor) -> tuple[Tensor, list[Payload]]:
    """The flags and the payloads of a frame."""
    return frame.flags(buffer), frame.payloads(buffer)


def place_of(owner: int, number: int) -> int:
    """The key of a piece in a transaction: its owner, and its number among the owner's pieces."""
    return (owner << 32) | number
