"""Each rank owns a slice of every parameter. It decodes and sums what all ranks send for it, encodes the result again
(with its own error memory) and gathers. Traffic is less than twice the payload for any number of ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..compressor.base import Compressor, Context, Payload, Spec, work_dtype
from ..key import Key
from ..memory.base import Memory
from ..pipeline.bucket import Bucket, Segment
from ..pipeline.driver import Program
from ..pipeline.frame import FAILED, NONFINITE, UNUSED, USED, FixedFrame, check_flags
from ..pipeline.request import Gather, Swap, Verdict
from .base import Communicator
from .transaction import BucketTransaction, finite, peer_errors

ALIGN = 1024
"""Slices start at multiples of this, so that blocks of block-wise methods are not split."""


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
    owned: list[list[Piece]]
    """The pieces of each owner, in order; the same list on every rank."""
    sizes: list[int]
    scatter: Half
    gather: Half


class Alltoall(Communicator):
    """Two phases: every slice is combined by its owner, then the results are gathered."""

    name = "alltoall"
    refusal = "a slice of a tensor cannot be compressed on its own, or its size varies"

    def __init__(self, compressor: Compressor, memory: Memory, **options: Any) -> None:
        super().__init__(compressor, memory, **options)
        self.second: Memory = self.memory.second_phase()

    @classmethod
    def carries(cls, compressor: type[Compressor]) -> bool:
        return compressor.elementwise

    @property
    def channels(self) -> int:
        return 2

    def memories(self) -> dict[str, Memory]:
        return {"memory": self.memory, "second": self.second}

    def owed(self, name: str) -> Tensor | None:
        """The residual of this rank: of its own gradient everywhere, and of the average in the slices it owns.

        The second is shared by all ranks, while each rank has the first, hence the factor.
        """
        parts = []
        for key in self.memory.keys_of(name):
            first, second = self.memory.residual(key), self.second.residual(_again(key))
            if first is None:
                continue
            whole = first.view(-1)
            parts.append(whole if second is None else whole + self.transport.size * second.view(-1))
        return torch.cat(parts) if parts else None

    # Layout -------------------------------------------------------------------------------------------

    def _cut(self, place: int, segment: Segment, dense: bool) -> list[Piece]:
        size, numel = self.transport.size, segment.flat.numel()
        if dense or numel < size * ALIGN:
            owner = zlib.crc32(segment.name.encode()) % size
            return [Piece(place, segment.name, 0, numel, owner, dense)]
        width = -(-numel // (size * ALIGN)) * ALIGN
        return [
            Piece(place, f"{segment.name}#{rank}", rank * width, min((rank + 1) * width, numel), rank, dense)
            for rank in range(size)
            if rank * width < numel
        ]

    def _lay_out(self, bucket: Bucket, dense: Sequence[bool]) -> Slices:
        size, rank = self.transport.size, self.transport.rank
        owned: list[list[Piece]] = [[] for _ in range(size)]
        for place, segment in enumerate(bucket.segments):
            pieces = self._cut(place, segment, dense[place])
            for piece in pieces:
                owned[piece.owner].append(piece)

        def spec(piece: Piece) -> Spec:
            numel = piece.stop - piece.start
            if piece.dense:
                return ((bucket.dtype, numel),)
            found = self.compressor.spec(numel, work_dtype(bucket.dtype))
            assert found is not None
            return found

        frames = [FixedFrame([spec(piece) for piece in pieces]) for pieces in owned]
        sizes = [frame.nbytes for frame in frames]
        widest = max(sizes)

        def empty(count: int) -> Tensor:
            return torch.zeros(count, dtype=torch.uint8, device=bucket.device)

        def views(frame: FixedFrame, buffer: Tensor) -> tuple[Tensor, list[Payload]]:
            return frame.flags(buffer), frame.payloads(buffer)

        # The first phase is combined before the second begins, so both use the same receive buffer.
        arriving = empty(size * widest)
        send, receive = empty(sum(sizes)), arriving[: size * sizes[rank]]
        scatter = Half(
            send,
            receive,
            [views(f, part) for f, part in zip(frames, send.split(sizes))],
            [views(frames[rank], part) for part in receive.split(sizes[rank])],
        )
        send = empty(widest)
        gather = Half(
            send,
            arriving,
            [views(frames[rank], send)],
            [views(f, part) for f, part in zip(frames, arriving.split(widest))],
        )
        return Slices(owned, sizes, scatter, gather)

    # Exchange -----------------------------------------------------------------------------------------

    def program(self, bucket: Bucket) -> Program:
        plan = self._plan(bucket)
        slices: Slices = plan.layout
        size, rank = self.transport.size, self.transport.rank
        first, second = BucketTransaction(), BucketTransaction()
        try:
            self._scatter(bucket, slices, first)
            in_splits = slices.sizes
            yield Swap(slices.scatter.receive, slices.scatter.send, [in_splits[rank]] * size, in_splits, rank)
            averages = self._combine(bucket, slices, first, second)
            yield Gather(slices.gather.receive, slices.gather.send, counts=False)
            flags = self._joint(bucket, slices)
            errors = first.errors or second.errors or peer_errors(flags)
            commit = yield Verdict(NONFINITE not in flags and FAILED not in flags, errors)
        except BaseException:
            first.abort()
            second.abort()
            raise
        del averages
        steps = [self.state.step(segment.name) for segment in bucket.segments]
        for place, segment in enumerate(bucket.segments):
            if commit and flags[place] == USED:
                self.state.commit(segment.name)
        for owner, pieces in enumerate(slices.owned):
            for number, piece in enumerate(pieces):
                good = commit and flags[piece.place] == USED
                first.settle(_place(owner, number), good)
                if owner == rank:
                    second.settle(number, good)
        self._decode(bucket, slices, flags, commit, steps)

    def _scatter(self, bucket: Bucket, slices: Slices, transaction: BucketTransaction) -> None:
        inputs = [self._input(segment).view(-1) for segment in bucket.segments]
        sound = [finite(segment.flat) for segment in bucket.segments]
        for owner, (pieces, (flags, payloads)) in enumerate(zip(slices.owned, slices.scatter.mine)):
            mine = []
            for number, (piece, out) in enumerate(zip(pieces, payloads)):
                segment = bucket.segments[piece.place]
                part = inputs[piece.place][piece.start : piece.stop]
                if not sound[piece.place]:
                    for tensor in out:
                        tensor.zero_()
                    mine.append(NONFINITE)
                elif piece.dense:
                    out[0].copy_(part)
                    mine.append(USED if segment.used else UNUSED)
                else:
                    key = self.key(piece.name, base=segment.name)
                    where = _place(owner, number)
                    # A residual of a previous method may make a sum overflow.
                    known = segment.name not in self.state.carried
                    mine.append(
                        transaction.begin(
                            where, self.memory, self.compressor, part, key, out, segment.used, known
                        )
                    )
            flags.copy_(torch.tensor(mine, dtype=torch.uint8))

    def _combine(
        self, bucket: Bucket, slices: Slices, first: BucketTransaction, second: BucketTransaction
    ) -> list[Tensor]:
        """Average the pieces this rank owns and encode them again; the averages are kept until the verdict."""
        rank, averages = self.transport.rank, []
        arrived = [flags.tolist() for flags, _ in slices.scatter.theirs]
        for sender, flags in enumerate(arrived):
            check_flags(flags, sender)
        flags_out, outs = slices.gather.mine[0]
        mine = []
        for number, (piece, out) in enumerate(zip(slices.owned[rank], outs)):
            flag = max(flags[number] for flags in arrived)
            if flag in (USED, UNUSED):
                average = torch.empty(
                    piece.stop - piece.start, dtype=work_dtype(bucket.dtype), device=bucket.device
                )
                averages.append(average)
                payloads = [peer[number] for _, peer in slices.scatter.theirs]
                if piece.dense:
                    average.copy_(payloads[0][0])
                    for payload in payloads[1:]:
                        average.add_(payload[0])
                    out[0].copy_(average.div_(len(payloads)))
                else:
                    ctx = first.pending(_place(rank, number)).ctx
                    self.compressor.combine_(average, payloads, ctx)
                    base = bucket.segments[piece.place].name
                    key = self.key(_again(piece.name), base=base)
                    done = second.begin(number, self.second, self.compressor, average, key, out)
                    flag = flag if done == USED else done
            mine.append(flag)
        flags_out.copy_(torch.tensor(mine, dtype=torch.uint8))
        return averages

    def _joint(self, bucket: Bucket, slices: Slices) -> list[int]:
        flags = [UNUSED] * len(bucket.segments)
        for owner, (pieces, (of_owner, _)) in enumerate(zip(slices.owned, slices.gather.theirs)):
            values = of_owner.tolist()
            check_flags(values, owner)
            for piece, value in zip(pieces, values):
                flags[piece.place] = max(flags[piece.place], value)
        return flags

    def _decode(
        self, bucket: Bucket, slices: Slices, flags: Sequence[int], commit: bool, steps: Sequence[int]
    ) -> None:
        outs = {}
        for place, segment in enumerate(bucket.segments):
            if not self._conclude_flagged(segment, flags[place]):
                outs[place] = self._output(segment).view(-1)
        for owner, (pieces, (_, payloads)) in enumerate(zip(slices.owned, slices.gather.theirs)):
            for piece, payload in zip(pieces, payloads):
                if piece.place not in outs:
                    continue
                out = outs[piece.place][piece.start : piece.stop]
                if piece.dense:
                    out.copy_(payload[0])
                else:
                    key = Key(_again(piece.name), self.seed, steps[piece.place], owner)
                    self.compressor.combine_(out, [payload], Context(out.shape, out.dtype, key))
        for place, out in outs.items():
            segment = bucket.segments[place]
            if commit and any(
                piece.dense for pieces in slices.owned for piece in pieces if piece.place == place
            ):
                self.memory.after_dense_([out], [segment.name])
            self._store(segment, out)


def _place(owner: int, number: int) -> int:
    return (owner << 32) | number


def _again(name: str) -> str:
    """The name for the second encoding of a piece, with its own random draws and residual."""
    return f"{name}'"
