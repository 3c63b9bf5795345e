"""A sparse all-reduce, for methods that send selected elements (after Ok-Topk: Li & Hoefler, PPoPP 2022).

Every element has an owner. Each rank sends every owner the selected elements that belong to it. The owner averages what
arrives, adds what it has left from earlier steps, and sends on the largest results: all owners together as many as
one rank has selected. Gathering them gives every rank the same sparse average.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Compressor, Payload, narrow, work_dtype
from ..compressor.sparse import ElementsCodec, SparseCodec
from ..errors import ConfigError, PayloadError
from ..memory.base import Memory
from ..memory.conversion import SavedMemory
from ..memory.none import NoneMemory
from ..memory.residual import ResidualMemory
from ..pipeline.bucket import Bucket
from ..pipeline.driver import Program
from ..pipeline.frame import FAILED, NONFINITE, USED
from ..pipeline.outline import NOTHING, Estimate, Load, Stage, blank, load_of
from ..pipeline.request import Gather, Request, Swap, Verdict
from .base import Joined, Plan
from .inspection import Inspection
from .owners import Owners, groups, spread
from .segments import SegmentCommunicator
from .slices import again
from .sparse_frame import SparseFrame, pack_flags, unpack_flags
from .sparse_selection import Elements, fitting, move_largest
from .transaction import BucketTransaction, finite


class Phase:
    """The frames of one phase: those that this rank sends, and one from every rank."""

    def __init__(self, frame: SparseFrame, sent: int, ranks: int, device: torch.device) -> None:
        self.frame = frame
        self.send = torch.zeros(sent * frame.nbytes, dtype=torch.uint8, device=device)
        self.receive = torch.zeros(ranks * frame.nbytes, dtype=torch.uint8, device=device)
        self.mine, self.theirs = frame.parts(self.send), frame.parts(self.receive)

    def flags(self) -> Tensor:
        """The flags of all ranks, of shape (ranks, flags)."""
        return unpack_flags(torch.stack([parts.flags for parts in self.theirs]), self.frame.flags)


@dataclass(slots=True)
class Layout:
    """The plan of a bucket."""

    owners: Owners
    """Of the elements of compressed segments."""
    dense: Tensor
    """The uncompressed segments in a row; every rank owns an equal part of it."""
    phases: tuple[Phase, Phase] | None
    """To the owners, and from them; None if the number of selected elements depends on the data."""


class SparseAllreduce(SegmentCommunicator):
    """Owners average the selected elements and select again; traffic does not grow with the number of ranks."""

    name = "sparse_allreduce"
    compresses_twice = True
    refusal = "its payload does not consist of selected elements"

    def __init__(self, compressor: Compressor, memory: Memory, **options: Any) -> None:
        super().__init__(compressor, memory, **options)
        self.second: Memory = NoneMemory() if isinstance(memory, NoneMemory) else ResidualMemory()

    @classmethod
    def carries(cls, compressor: type[Compressor]) -> bool:
        return issubclass(compressor, SparseCodec) and not compressor.sums

    @property
    def channels(self) -> int:
        return 3 if self._codec.chosen(1) is None else 2

    @property
    def _codec(self) -> SparseCodec:
        return cast(SparseCodec, self.compressor)

    # State --------------------------------------------------------------------------------------------

    def memories(self) -> dict[str, Memory]:
        return {"memory": self.memory, "second": self.second}

    def owed(self, name: str) -> Tensor | None:
        """The residual of this rank: of its own gradient, and of the results of the elements it owns."""
        first, second = super().owed(name), self.second.residual(again(name))
        if first is None or second is None:
            return first
        rank, size = self.transport.rank, self.transport.size
        return first + size * spread(second, name, first.numel(), rank, size)

    @classmethod
    def joined(cls, memory: Memory, saved: Mapping[str, SavedMemory], rank: int, size: int) -> Joined:
        """What is left of averages is added to the residual: as part of a gradient, it would enter a momentum."""
        first, owed = dict(saved["memory"]), {}
        for key, slots in saved["second"].items():
            name = key.removesuffix("'")
            held = memory.settled(first[name])
            left = spread(slots["e"], name, next(iter(held.values())).numel(), rank, size)
            absorbed = memory.absorbed(held, size * left)
            if absorbed is None:
                owed[name] = left
            else:
                first[name] = absorbed
        return Joined(first, owed)

    # Layout -------------------------------------------------------------------------------------------

    def _lay_out(self, bucket: Bucket, dense: Sequence[bool]) -> Layout:
        owners, raw = self._owners(bucket, dense)
        row = torch.zeros(self.transport.size * raw, dtype=bucket.dtype, device=bucket.device)
        chosen = self._chosen(owners)
        phases = None if chosen is None else self._phases(bucket, owners, raw, chosen)
        return Layout(owners, row, phases)

    def _owners(self, bucket: Bucket, dense: Sequence[bool]) -> tuple[Owners, int]:
        """The owners of compressed segments, and how many elements of the others a rank owns."""
        coded = [segment for segment, d in zip(bucket.segments, dense) if not d]
        raw = sum(segment.flat.numel() for segment, d in zip(bucket.segments, dense) if d)
        size = self.transport.size
        owners = Owners([s.name for s in coded], [s.flat.numel() for s in coded], size, bucket.device)
        return owners, groups(raw, size)

    def _chosen(self, owners: Owners) -> int | None:
        """How many elements of a bucket a rank selects at most."""
        counts = [self._codec.chosen(numel) for numel in owners.numels]
        return None if None in counts else sum(count for count in counts if count is not None)

    def _frames(
        self, bucket: Bucket, owners: Owners, raw: int, chosen: int
    ) -> tuple[SparseFrame, SparseFrame]:
        """The frames of both phases if no rank selects more than `chosen` elements.

        Elements fall to owners as balls into boxes: the first frame has room for a standard deviation more than the mean.
        What does not fit stays in the memory.
        """
        share, values = chosen / self.transport.size, self._codec.wire_dtype(work_dtype(bucket.dtype))

        def frame(capacity: float) -> SparseFrame:
            room = min(math.ceil(capacity), owners.owned)
            return SparseFrame((bucket.dtype, raw), values, room, owners.owned, len(bucket.segments) + 1)

        return frame(share + math.sqrt(share)), frame(share)

    def _phases(self, bucket: Bucket, owners: Owners, raw: int, chosen: int) -> tuple[Phase, Phase]:
        first, second = self._frames(bucket, owners, raw, chosen)
        size, device = self.transport.size, bucket.device
        return Phase(first, size, size, device), Phase(second, 1, size, device)

    def outline(self, bucket: Bucket, estimate: Estimate | None = None) -> list[Stage]:
        size, dense = self.transport.size, self._dense_flags(bucket)
        owners, raw = self._owners(bucket, dense)
        encode = load = load_of(segment for segment, d in zip(bucket.segments, dense) if not d)
        chosen, stages = self._chosen(owners), []
        if chosen is None:
            if estimate is None:
                raise ConfigError(
                    f"the payload size of {self.label} depends on the data; pass an estimate of it."
                )
            width = self._codec.wire_dtype(work_dtype(bucket.dtype)).itemsize + 1
            chosen = sum(min(numel, estimate(numel) // width) for numel in owners.numels)
            stages.append(Stage(Gather(blank(8 * size), blank(8)), encode=load))
            encode = NOTHING
        first, second = (frame.nbytes for frame in self._frames(bucket, owners, raw, chosen))
        mine = Load(1, owners.owned)
        return [
            *stages,
            Stage(self._swap(blank(size * first), blank(size * first)), encode=encode),
            Stage(
                Gather(blank(size * second), blank(second), counts=False),
                decode=mine._replace(payloads=size),
                encode=mine,
            ),
            Stage(None, decode=load),
        ]

    def _swap(self, receive: Tensor, send: Tensor) -> Swap:
        size = self.transport.size
        splits = [send.numel() // size] * size
        return Swap(receive, send, splits, splits, self.transport.rank, read=True)

    # Exchange -----------------------------------------------------------------------------------------

    def program(self, bucket: Bucket) -> Program:
        plan = self._plan(bucket)
        layout: Layout = plan.layout
        transaction = BucketTransaction(self.transport)
        names = [segment.name for segment in bucket.segments]
        inspection = Inspection([*names, f"the averages of {len(names)} parameters"], [transaction])
        try:
            flags = self._begin(bucket, plan, transaction, self._slots(bucket, plan))
            found = self._elements(bucket, plan, transaction)
            to_owners, from_owners = layout.phases or (yield from self._varying(bucket, layout, found))
            self._fill(plan, to_owners, flags, found, transaction)
            yield self._swap(to_owners.receive, to_owners.send)
            left = self._combine(bucket, layout, to_owners, from_owners, transaction)
            yield Gather(from_owners.receive, from_owners.send, counts=False)
            most = torch.finfo(work_dtype(bucket.dtype)).max
            for owner, parts in enumerate(from_owners.theirs):
                inspection.add(owner, len(names), from_owners.frame.fault(parts, most))
            commit = yield inspection.gathered(
                from_owners.flags(), [segment.used for segment in bucket.segments]
            )
        except BaseException:
            transaction.abort()
            raise
        joint = inspection.joint[:-1]
        if inspection.joint[-1] > USED:  # of an owner's sums, not of a rank's gradients
            for place in plan.coded:
                joint[place] = max(joint[place], NONFINITE)
        ready = self._decide(bucket, transaction, joint, commit)
        if commit:
            transaction.commit([place for place in plan.coded if place in ready])
            self._keep(bucket, plan, ready, left)
        self._decode(bucket, plan, from_owners, ready, commit)

    def _slots(self, bucket: Bucket, plan: Plan) -> list[Payload | None]:
        """Where uncompressed segments are copied to; compressors allocate their payloads."""
        slots: list[Payload | None] = [None] * len(bucket.segments)
        for place, part in zip(plan.dense, _dense_parts(bucket, plan, plan.layout.dense)):
            slots[place] = [part]
        return slots

    def _elements(self, bucket: Bucket, plan: Plan, transaction: BucketTransaction) -> Elements:
        """The selected elements of every compressed segment."""
        codec, found = self._codec, Elements()
        for place in plan.coded:
            pending = transaction.find(place)
            if pending is None:  # flagged
                where = torch.empty(0, dtype=torch.int64, device=bucket.device)
                found.add(where, where.to(codec.wire_dtype(work_dtype(bucket.dtype))))
            else:
                found.add(*codec.elements(pending.payload, pending.ctx))
        return found

    def _varying(
        self, bucket: Bucket, layout: Layout, found: Elements
    ) -> Generator[Request | Verdict, Any, tuple[Phase, Phase]]:
        """Phases for as many elements as the rank has selected that has selected most."""
        size, numel = self.transport.size, layout.owners.numel
        totals = torch.empty(size, dtype=torch.int64, device=bucket.device)
        mine = torch.tensor([found.count], dtype=torch.int64, device=bucket.device)
        yield Gather(totals, mine, read=True)
        counts = totals.tolist()
        for rank, count in enumerate(counts):
            # The same decision on every rank, even on the one that sent it: otherwise some would start a round alone.
            if not 0 <= count <= numel:
                raise PayloadError(f"rank {rank} announces {count} elements of {numel}: broken bytes.")
        return self._phases(bucket, layout.owners, layout.dense.numel() // size, max(counts))

    def _fill(
        self, plan: Plan, phase: Phase, flags: Tensor, found: Elements, transaction: BucketTransaction
    ) -> None:
        """Write the frames to all owners."""
        owners, size = plan.layout.owners, self.transport.size
        phase.send.zero_()
        packed = pack_flags(torch.nn.functional.pad(flags, (0, 1), value=USED))
        for parts, raw in zip(phase.mine, plan.layout.dense.view(size, -1)):
            parts.dense.copy_(raw)
            parts.flags.copy_(packed)
        if not owners.owned:
            return
        owner, place = owners.locate(found.positions)
        values = torch.cat(found.values)
        kept = fitting(owner, values, size, phase.frame.capacity)
        if kept is not None:
            self._withhold(plan, found, kept, transaction)
            owner, place, values = owner[kept], place[kept], values[kept]
        order = torch.argsort(owner * owners.owned + place)
        counts = torch.bincount(owner, minlength=size).tolist()
        for parts, *selected in zip(phase.mine, place[order].split(counts), values[order].split(counts)):
            phase.frame.write(parts, *selected)

    def _withhold(self, plan: Plan, found: Elements, kept: Tensor, transaction: BucketTransaction) -> None:
        """Leave elements that do not fit into their frames to the memory."""
        codec = ElementsCodec()
        marks = kept.split([part.numel() for part in found.values])
        for place, where, values, mark in zip(plan.coded, found.positions, found.values, marks):
            if not bool(mark.all()):
                pending = transaction.pending(place)
                payload = codec.pack(where[mark], values[mark], pending.ctx.numel)
                self.memory.withhold(pending, codec, payload)

    def _combine(
        self, bucket: Bucket, layout: Layout, arrived: Phase, out: Phase, transaction: BucketTransaction
    ) -> list[Tensor]:
        """Average what this rank owns and select again; returns what is left of each compressed segment.

        What this rank finds wrong, the others learn by the last flag of its frame.
        """
        out.send.zero_()
        flags, left = arrived.flags().amax(0), []
        (mine,) = out.mine
        out.frame.write(mine, mine.indices.new_empty(0, dtype=torch.int64), mine.values[:0])
        if int(flags.max()) <= USED:
            try:
                flags[-1] = self._check(bucket, arrived, transaction.errors)
                if flags[-1] == USED:
                    left = self._average(bucket, layout, arrived, out)
                    flags[-1] = USED if all(map(finite, left)) else NONFINITE
            except Exception as error:  # the others wait for this rank's frame
                transaction.errors.append(error)
                flags[-1] = FAILED
        mine.flags.copy_(pack_flags(flags))
        return left

    def _check(self, bucket: Bucket, arrived: Phase, errors: list[Exception]) -> int:
        """The flag of what all ranks have sent to this one."""
        inspection = Inspection([f"the elements of rank {self.transport.rank}"], [])
        most = torch.finfo(work_dtype(bucket.dtype)).max / self.transport.size
        for rank, parts in enumerate(arrived.theirs):
            inspection.add(rank, 0, arrived.frame.fault(parts, most))
        return inspection.flag(len(arrived.theirs), errors) or USED

    def _average(self, bucket: Bucket, layout: Layout, arrived: Phase, out: Phase) -> list[Tensor]:
        dtype, (mine,), owners = work_dtype(bucket.dtype), out.mine, layout.owners
        if layout.dense.numel():
            mean = torch.empty_like(mine.dense, dtype=dtype)
            parts = [[each.dense] for each in arrived.theirs]
            kernels.of(mean).average_([mean], parts, float(self.transport.size))
            mine.dense.copy_(narrow(mean, bucket.dtype))
        if not owners.owned:
            return []
        total = torch.zeros(owners.owned, dtype=dtype, device=bucket.device)
        if arrived.frame.capacity:
            sent = [parts.sent for parts in arrived.theirs]
            kernels.of(total).sparse_combine_([total], [sent], 1.0 / self.transport.size)
        total[owners.missing(self.transport.rank)] = 0
        left = list(total.split(owners.groups))
        for name, part in zip(owners.names, left):
            kept = self.second.state.get(again(name))
            if kept is not None:
                part.add_(self.second.slot(again(name), "e", part))
        move_largest(total, left, mine)
        return left

    def _keep(self, bucket: Bucket, plan: Plan, ready: set[int], left: Sequence[Tensor]) -> None:
        """Remember what this rank has left of the averages."""
        if isinstance(self.second, NoneMemory):
            return
        for place, part in zip(plan.coded, left):
            if place in ready:
                name = again(bucket.segments[place].name)
                self.second.slot(name, "e", part).copy_(part)

    def _decode(self, bucket: Bucket, plan: Plan, arrived: Phase, ready: set[int], commit: bool) -> None:
        owners, frame = plan.layout.owners, arrived.frame
        result = torch.zeros(owners.numel, dtype=work_dtype(bucket.dtype), device=bucket.device)
        if frame.capacity and not ready.isdisjoint(plan.coded):
            kernel = kernels.of(result)
            for owner, parts in enumerate(arrived.theirs):
                count = int(parts.number)
                places = kernel.decode_indices(parts.indices, frame.universe, frame.capacity, count)
                where, exist = owners.whole(places, owner)
                result[where[exist]] = parts.values[:count][exist].to(result.dtype)
        if not self.compressor.average:
            result.mul_(self.transport.size)
        parts_of = dict(zip(plan.coded, result.split(owners.numels)))
        coded = [place for place in plan.coded if place in ready]
        outs = [self._output(bucket.segments[place]) for place in coded]
        for place, out in zip(coded, outs):
            out.view(-1).copy_(parts_of[place])
        self.memory.after_coded_(outs, [bucket.segments[place].name for place in coded], commit)
        for place, out in zip(coded, outs):
            self._store(bucket.segments[place], out)
        row = torch.cat([parts.dense for parts in arrived.theirs])
        dense = dict(zip(plan.dense, _dense_parts(bucket, plan, row)))
        left = [place for place in plan.dense if place in ready]
        self._dense_results(bucket, left, [[dense[place] for place in left]], commit)

    def _dense_divisor(self, dtype: torch.dtype) -> int:
        return 1  # owners have divided


def _dense_parts(bucket: Bucket, plan: Plan, row: Tensor) -> Sequence[Tensor]:
    """The uncompressed segments in a row of all of them."""
    sizes = [bucket.segments[place].flat.numel() for place in plan.dense]
    return row[: sum(sizes)].split(sizes)
