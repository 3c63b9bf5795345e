"""Each rank owns an equal part of every bucket. It decodes and sums what all ranks send for it, encodes the result again
(with its own error memory) and gathers. Traffic is about twice the payload for any number of ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..compressor.base import Compressor, Context, work_dtype
from ..key import Key
from ..memory.base import Memory
from ..memory.conversion import SavedMemory
from ..pipeline.bucket import Bucket
from ..pipeline.driver import Program
from ..pipeline.frame import UNUSED, USED, FixedFrame
from ..pipeline.outline import NOTHING, Estimate, Load, Stage, blank
from ..pipeline.request import Gather, Swap, Verdict
from .base import Communicator, Joined
from .dealing import DENSE_GRAIN, GRAIN, dealt
from .inspection import Inspection
from .scatter import Half, Piece, Scatter, Slices, place_of, views
from .slices import Slots, again, by_parameter, cut, joined, lengths, slice_name, start_of
from .transaction import BucketTransaction


@dataclass(slots=True)
class TwoPhases:
    """The plan of a bucket: its slices, and the buffers of both phases."""

    slices: Slices
    places: list[Tensor]
    """The segments of each owner's pieces."""
    scatter: Half
    gather: Half


class Alltoall(Scatter):
    """Two phases: every slice is combined by its owner, then the results are gathered."""

    name = "alltoall"
    compresses_twice = True

    def __init__(self, compressor: Compressor, memory: Memory, **options: Any) -> None:
        super().__init__(compressor, memory, **options)
        self.second: Memory = self.memory.second_phase()

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
        for key in by_parameter(self.memory.keys_of(name)).get(name, ()):
            first, second = self.memory.residual(key), self.second.residual(again(key))
            if first is None:
                continue
            whole = first.view(-1)
            parts.append(whole if second is None else whole + self.transport.size * second.view(-1))
        return torch.cat(parts) if parts else None

    @classmethod
    def joined(cls, memory: Memory, saved: Mapping[str, SavedMemory], rank: int, size: int) -> Joined:
        first, whole = saved["memory"], joined(memory, saved["memory"])
        second = memory.second_phase()
        second.load_state_dict(saved["second"])
        slices = by_parameter(first)
        owed: dict[str, Tensor] = {}
        for name, keys in by_parameter(saved["second"]).items():
            for key in keys:
                residual = second.residual(key)
                if residual is not None:
                    start = start_of(key, first, slices[name])
                    owed.setdefault(name, torch.zeros_like(next(iter(whole[name].values()))))
                    owed[name][start : start + residual.numel()] += residual.view(-1)
        return Joined(whole, owed)

    def take(self, name: str, other: Communicator) -> None:
        super().take(name, other)
        self.forget_plans()  # state is cut for a bucket when that is laid out

    # Layout -------------------------------------------------------------------------------------------

    def _pieces(self, bucket: Bucket, dense: Sequence[bool]) -> Iterator[Piece]:
        size, segments = self.transport.size, bucket.segments
        counts = [segment.flat.numel() for segment in segments]
        specs = [self._piece_spec(bucket, numel, one) for numel, one in zip(counts, dense)]
        nbytes = [FixedFrame([spec]).nbytes for spec in specs]
        shares = dealt(counts, nbytes, [DENSE_GRAIN if one else GRAIN for one in dense], size)
        # Where there is less than a grain for each rank, small buckets go to different owners.
        shift = zlib.crc32(segments[0].name.encode())
        for place, (segment, parts) in enumerate(zip(segments, shares)):
            for number, (start, stop, of_range) in enumerate(parts):
                name = slice_name(segment.name, number, len(parts))
                yield Piece(place, name, start, stop, (of_range + shift) % size, dense[place])

    def _lay_out(self, bucket: Bucket, dense: Sequence[bool]) -> TwoPhases:
        slices = self._slices(bucket, dense)
        self._cut_state(bucket, slices)
        size, own, widest = self.transport.size, slices.frames[self.transport.rank], max(slices.sizes)

        def empty(count: int) -> Tensor:
            return torch.zeros(count, dtype=torch.uint8, device=bucket.device)

        # The first phase is combined before the second begins, so both use the same receive buffer.
        arriving = empty(size * widest)
        scatter = self._scatter_half(slices, empty(sum(slices.sizes)), arriving[: size * own.nbytes])
        send = empty(widest)
        parts = [views(frame, part) for frame, part in zip(slices.frames, arriving.split(widest))]
        places = [
            torch.tensor([piece.place for piece in pieces], dtype=torch.int64, device=bucket.device)
            for pieces in slices.owned
        ]
        return TwoPhases(slices, places, scatter, Half(send, arriving, [views(own, send)], parts))

    def _cut_state(self, bucket: Bucket, slices: Slices) -> None:
        """Cut the state of a bucket's parameters for its layout; nothing is lost if it was cut for another.

        A slice of an average that this rank no longer owns cannot go to its owner without a message. Instead this rank
        adds what it has not sent of it to its own gradient, times the number of ranks.
        """
        first, second = by_parameter(self.memory.state), by_parameter(self.second.state)
        sizes: dict[str, list[int]] = {}
        pieces = [piece for of_owner in slices.owned for piece in of_owner]
        for piece in sorted(pieces, key=lambda piece: (piece.place, piece.start)):
            sizes.setdefault(bucket.segments[piece.place].name, []).append(piece.stop - piece.start)
        owned = {again(piece.name) for piece in slices.owned[self.transport.rank]}
        for name, wanted in sizes.items():
            keys = first.get(name)
            if keys is None:
                continue
            names = [slice_name(name, number, len(wanted)) for number in range(len(wanted))]
            same = keys == names and lengths(self.memory.state, keys) == wanted
            if not (same or self.state.step(name)):  # what a first step left behind that was given up
                for memory, held in ((self.memory, keys), (self.second, second.get(name, ()))):
                    for key in held:
                        del memory.state[key]
                continue
            moved = [key for key in second.get(name, ()) if not same or key not in owned]
            for key in moved:
                residual = self.second.residual(key)
                assert residual is not None
                start, owed = start_of(key, self.memory.state, keys), residual.new_zeros(sum(wanted))
                owed[start : start + residual.numel()] = self.transport.size * residual.view(-1)
                self.state.carry(name, owed)
                del self.second.state[key]
            if not same:
                cut(self.memory, name, keys, wanted)

    def outline(self, bucket: Bucket, estimate: Estimate | None = None) -> list[Stage]:
        size, rank = self.transport.size, self.transport.rank
        slices = self._slices(bucket, self._dense_flags(bucket))
        owned, sizes, widest = slices.owned, slices.sizes, max(slices.sizes)
        loads = [
            Load(len(counts), sum(counts))
            for counts in ([p.stop - p.start for p in pieces if not p.dense] for pieces in owned if pieces)
        ]
        whole = Load(sum(load.tensors for load in loads), sum(load.elements for load in loads))
        # Ranks wait for the one that owns most.
        mine = max(loads, key=lambda load: load.elements, default=NOTHING)
        swap = Swap(blank(size * sizes[rank]), blank(sum(sizes)), [sizes[rank]] * size, sizes, rank)
        gather = Gather(blank(size * widest), blank(widest), counts=False)
        return [
            Stage(swap, encode=whole),
            Stage(gather, decode=mine._replace(payloads=size), encode=mine),
            Stage(None, decode=whole),
        ]

    # Exchange -----------------------------------------------------------------------------------------

    def program(self, bucket: Bucket) -> Program:
        phases: TwoPhases = self._plan(bucket).layout
        slices, rank = phases.slices, self.transport.rank
        first, second = BucketTransaction(self.transport), BucketTransaction(self.transport)
        inspection = Inspection([segment.name for segment in bucket.segments], [first, second])
        before: dict[str, Slots] = {}
        try:
            yield self._scatter(bucket, slices, phases.scatter, first)
            before = self._combine(bucket, phases, first, second)
            yield Gather(phases.gather.receive, phases.gather.send, counts=False)
            commit = yield self._verdict(bucket, phases, inspection)
        except BaseException:
            first.abort()
            second.abort()
            self._restore(before)
            raise
        flags = inspection.joint
        steps = [self.state.step(segment.name) for segment in bucket.segments]
        for place, segment in enumerate(bucket.segments):
            if commit and flags[place] == USED:
                self.state.commit(segment.name)
        for owner, pieces in enumerate(slices.owned):
            for number, piece in enumerate(pieces):
                good = commit and flags[piece.place] == USED
                first.settle(place_of(owner, number), good)
                if owner == rank:
                    second.settle(number, good)
                    if good:
                        before.pop(again(piece.name), None)
        self._restore(before)
        self._decode(bucket, phases, flags, commit, steps)

    def _combine(
        self, bucket: Bucket, phases: TwoPhases, first: BucketTransaction, second: BucketTransaction
    ) -> dict[str, Slots]:
        """Average the pieces this rank owns and encode them again.

        Returns the state of the second memory before: a peer's broken payload may decode to an average so large that
        subtracting it again would not restore the residual.
        """
        slices, before = phases.slices, {}
        flags_out, outs = phases.gather.mine[0]
        # What this rank finds wrong, the others learn by the flags of its own frame.
        flags = self._arrived(slices, phases.scatter, first, second.errors)
        for number, (piece, out) in enumerate(zip(slices.owned[self.transport.rank], outs)):
            if flags[number] not in (USED, UNUSED):
                continue
            average = self._average(bucket, slices, phases.scatter, number, first)
            if piece.dense:
                out[0].copy_(average)
            else:
                key = self.key(again(piece.name), base=bucket.segments[piece.place].name)
                held = self.second.state.get(key.name, {})
                before[key.name] = {slot: tensor.clone() for slot, tensor in held.items()}
                done = second.begin(number, self.second, self.compressor, average, key, out)
                flags[number] = flags[number] if done == USED else done
        flags_out.copy_(torch.tensor(flags, dtype=torch.uint8))
        return before

    def _restore(self, before: Mapping[str, Slots]) -> None:
        """Set entries of the second memory back."""
        for key, slots in before.items():
            self.second.state.pop(key, None)
            if slots:
                self.second.state[key] = slots

    def _verdict(self, bucket: Bucket, phases: TwoPhases, inspection: Inspection) -> Verdict:
        """By the flags and payloads of all owners."""
        owned, dtype = phases.slices.owned, work_dtype(bucket.dtype)
        joint = torch.zeros(len(owned), len(bucket.segments), dtype=torch.uint8, device=bucket.device)
        for owner, (pieces, (flags, payloads)) in enumerate(zip(owned, phases.gather.theirs)):
            joint[owner].scatter_(0, phases.places[owner], flags)
            for piece, payload in zip(pieces, payloads):
                base = bucket.segments[piece.place].name
                key = Key(again(piece.name), self.seed, self.state.step(base), owner)
                ctx = Context(torch.Size([piece.stop - piece.start]), dtype, key)
                inspection.add(owner, piece.place, self._fault(piece, payload, ctx))
        return inspection.gathered(joint, [segment.used for segment in bucket.segments])

    def _decode(
        self, bucket: Bucket, phases: TwoPhases, flags: Sequence[int], commit: bool, steps: Sequence[int]
    ) -> None:
        slices, outs = phases.slices, {}
        for place, segment in enumerate(bucket.segments):
            if not self._conclude_flagged(segment, flags[place]):
                outs[place] = self._output(segment).view(-1)
        for owner, (pieces, (_, payloads)) in enumerate(zip(slices.owned, phases.gather.theirs)):
            for piece, payload in zip(pieces, payloads):
                if piece.place not in outs:
                    continue
                out = outs[piece.place][piece.start : piece.stop]
                if piece.dense:
                    out.copy_(payload[0])
                else:
                    key = Key(again(piece.name), self.seed, steps[piece.place], owner)
                    self.compressor.combine_(out, [payload], Context(out.shape, out.dtype, key))
                    self.memory.after_coded_([out], [piece.name], commit)
        for place, out in outs.items():
            segment = bucket.segments[place]
            if commit and any(
                piece.dense for pieces in slices.owned for piece in pieces if piece.place == place
            ):
                self.memory.after_dense_([out], [segment.name])
            self._store(segment, out)
