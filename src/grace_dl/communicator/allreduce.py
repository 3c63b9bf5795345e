"""Payloads are summed by all-reduce: traffic is less than twice the payload for any number of ranks."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Compressor, work_dtype, working
from ..compressor.lowrank import LowRankCompressor
from ..errors import ConfigError
from ..kernels.faults import Fault
from ..memory.base import Pending
from ..memory.none import NoneMemory
from ..pipeline.bucket import Bucket, Segment
from ..pipeline.driver import Program
from ..pipeline.frame import NONFINITE, UNUSED, USED, SumFrame
from ..pipeline.outline import Estimate, Stage, blank, load_of
from ..pipeline.request import Request, Sum, Verdict
from .inspection import Inspection
from .segments import SegmentCommunicator
from .transaction import BucketTransaction, finite, joined

FACTOR_LIMIT = {kind: torch.finfo(kind).max / 4 for kind in (torch.float32, torch.float64)}
"""The largest entry of an averaged factor: with larger ones the product of two factors may overflow."""


@dataclass(slots=True)
class Summed:
    """The frame of one bucket, and views of it, by segment.

    `own` is what this rank encodes, if a memory needs it after the frame holds the sum; otherwise it is the frame.
    """

    frame: Tensor
    own: Tensor
    mine: list[Tensor]
    payloads: list[Tensor]
    flags: Tensor


class Allreduce(SegmentCommunicator):
    """Sums payloads over ranks; for methods whose payloads can be summed."""

    name = "allreduce"
    sums = True
    refusal = "its payloads cannot be added up"

    @classmethod
    def carries(cls, compressor: type[Compressor]) -> bool:
        return compressor.sums

    @property
    def channels(self) -> int:
        return self.memory.rounds_per_step(self.compressor) if self.compressor.multi_round else 1

    @property
    def _stateless(self) -> bool:
        return self.compressor.whole_bucket and isinstance(self.memory, NoneMemory)

    def _is_dense(self, segment: Segment, bucket: Bucket) -> bool:
        # A lossless method sends the gradient itself, and averaging is faster without transactions.
        plain = self.compressor.lossless and self.compressor.average and self._stateless
        return plain or super()._is_dense(segment, bucket)

    def program(self, bucket: Bucket) -> Program:
        if self._stateless and bucket.flat is not None:
            owing = any(self.state.may_owe(segment.name) for segment in bucket.segments)
            return self._paying(bucket) if owing else self._whole(bucket, bucket.flat)
        if self.compressor.multi_round:
            return self._several(bucket)
        return self._one(bucket)

    def outline(self, bucket: Bucket, estimate: Estimate | None = None) -> list[Stage]:
        dense = self._dense_flags(bucket)
        segments = bucket.segments
        coded = [segment for segment, d in zip(segments, dense) if not d]
        load = load_of(coded)
        if self._stateless and bucket.flat is not None:
            x = bucket.flat
            spec = self.compressor.spec(
                x.numel(), x.dtype if self.compressor.lossless else work_dtype(x.dtype)
            )
            assert spec is not None
            kind, count = spec[0]
            return [
                Stage(Sum(blank(count, kind)), encode=load_of(segments)),
                Stage(None, decode=load_of(segments)),
            ]
        if self.compressor.multi_round:
            first = self._factors_layout(bucket, dense)
            rounds = (
                [count // self.channels for _ in range(self.channels)]
                if (count := self._factors(coded))
                else [0]
            )
            sums = [
                Sum(blank(count + first.numel * (not place), work_dtype(bucket.dtype)))
                for place, count in enumerate(rounds)
            ]
            return [Stage(sums[0], encode=load), *map(Stage, sums[1:]), Stage(None, decode=load)]
        layout, kind = self._sum_layout(bucket, dense)
        return [Stage(Sum(blank(layout.numel, kind)), encode=load), Stage(None, decode=load)]

    def _factors(self, segments: Sequence[Segment]) -> int:
        """Elements of the factors that are summed in a step; the average of two, as methods may alternate."""
        compressor = cast(LowRankCompressor, self.compressor)
        steps = [
            compressor.payload_bytes_of(s.view.shape, s.flat.dtype, step) for s in segments for step in (0, 1)
        ]
        return sum(steps) // (2 * work_dtype(segments[0].flat.dtype).itemsize) if segments else 0

    # A whole bucket at once: no state, no flags; non-finite values survive the sum ---------------------

    def _whole(self, bucket: Bucket, flat: Tensor) -> Program:
        self._plan(bucket)
        x = flat if self.compressor.lossless else working(flat)
        payload, ctx = self.compressor.encode(x, self.key(bucket.segments[0].name))
        early = self.compressor.lossless and self.compressor.average and self._early(x.dtype)
        if early:
            x.div_(self.transport.size)
        yield Sum(payload[0])
        # Without state nothing depends on the verdict: decode while later buckets are in flight.
        if payload[0].data_ptr() != x.data_ptr():
            fault = self._dense_fault(payload[0])
            x.zero_()
            self.compressor.accumulate_(x, payload, ctx)
            self.compressor.finish_(x, self._divisor)
        else:
            fault = self._dense_fault(x) if early else self._divide(x)
        if x is not flat:
            flat.copy_(x)
        commit = yield Verdict([fault], _no_fault)
        for segment in bucket.segments:
            if commit:
                self.state.commit(segment.name)

    def _divide(self, sums: Tensor) -> Fault:
        """Turn sums into results in place; a fault if they are not finite, found in the same pass."""
        compressor = self.compressor
        if type(compressor).finish_ is Compressor.finish_ and compressor.average and self._divisor != 1:
            return kernels.of(sums).divide_(sums, self._divisor)
        compressor.finish_(sums, self._divisor)
        return self._dense_fault(sums)

    def _paying(self, bucket: Bucket) -> Program:
        """A bucket of which some rank may carry residuals, with flags: an unused parameter keeps its residual."""
        key = (bucket.key, "paying")
        yield from self._one(Bucket(key, bucket.segments, compress_all=bucket.compress_all))
        self._plans.pop(key, None)  # its frame is not needed again

    @property
    def _divisor(self) -> int:
        """The remaining divisor of a sum: a method may divide before it sends."""
        return 1 if self.compressor.divides_first else self.transport.size

    @staticmethod
    def _early(dtype: torch.dtype) -> bool:
        """Whether values are divided before they are summed: a sum in float16 overflows where the mean does not."""
        return dtype is torch.float16

    def _dense_divisor(self, dtype: torch.dtype) -> int:
        return 1 if self._early(dtype) else super()._dense_divisor(dtype)

    # One round ----------------------------------------------------------------------------------------

    def _lay_out(self, bucket: Bucket, dense: Sequence[bool]) -> Summed | None:
        if self._stateless and bucket.flat is not None:
            return None
        if self.compressor.multi_round:
            return self._frame(self._factors_layout(bucket, dense), work_dtype(bucket.dtype), bucket.device)
        keep = not isinstance(self.memory, NoneMemory)
        return self._frame(*self._sum_layout(bucket, dense), bucket.device, keep)

    def _sum_layout(self, bucket: Bucket, dense: Sequence[bool]) -> tuple[SumFrame, torch.dtype]:
        specs = [self._spec(segment, d) for segment, d in zip(bucket.segments, dense)]
        coded = [spec for spec, d in zip(specs, dense) if not d]
        kinds = {kind for spec in coded if spec is not None for kind, _ in spec} or {bucket.dtype}
        if None in coded or len(kinds) > 1:
            raise ConfigError(
                f"{self.label} says its payloads sum, but their sizes or dtypes ({kinds}) differ; give it a spec "
                "of one tensor, or use Allgather."
            )
        counts = [sum(count for _, count in spec) for spec in specs if spec is not None]
        return SumFrame(counts, len(bucket.segments)), kinds.pop()

    @staticmethod
    def _frame(layout: SumFrame, dtype: torch.dtype, device: torch.device, keep: bool = False) -> Summed:
        frame = torch.zeros(layout.numel, dtype=dtype, device=device)
        own = torch.zeros_like(frame) if keep else frame
        return Summed(frame, own, layout.split(own)[0], *layout.split(frame))

    def _one(self, bucket: Bucket) -> Program:
        plan = self._plan(bucket)
        summed: Summed = plan.layout
        transaction = BucketTransaction(self.transport)
        inspection = Inspection([segment.name for segment in bucket.segments], [transaction])
        try:
            flags = self._begin(bucket, plan, transaction, [[slot] for slot in summed.mine])
            slots = [summed.mine[place] for place in plan.dense]
            if slots and self._early(summed.frame.dtype):
                torch._foreach_div_(slots, self.transport.size)
            if summed.own is not summed.frame:
                summed.frame.copy_(summed.own)
            summed.flags.copy_(SumFrame.lanes(flags))
            yield Sum(summed.frame)
            for place, total in enumerate(summed.payloads):
                inspection.add(0, place, self._dense_fault(total))
            commit = yield inspection.summed(summed.flags, self.transport.size)
        except BaseException:
            transaction.abort()
            raise
        left = self._decide(bucket, transaction, inspection.joint, commit)
        if commit:
            transaction.commit([place for place in plan.coded if place in left])
        for place in plan.coded:
            if place in left:
                segment = bucket.segments[place]
                out = self._output(segment)
                out.zero_()
                self.compressor.accumulate_(out, [summed.payloads[place]], transaction.pending(place).ctx)
                self.compressor.finish_(out, self._divisor)
                self.memory.after_coded_([out], [segment.name], commit)
                self._store(segment, out)
        dense = [place for place in plan.dense if place in left]
        self._dense_results(bucket, dense, [[summed.payloads[place] for place in dense]], commit)

    # Several rounds: factors of all matrices; dense parameters join the first ------------------------

    @staticmethod
    def _factors_layout(bucket: Bucket, dense: Sequence[bool]) -> SumFrame:
        counts = [segment.flat.numel() for segment, d in zip(bucket.segments, dense) if d]
        return SumFrame(counts, len(bucket.segments))

    def _several(self, bucket: Bucket) -> Program:
        plan = self._plan(bucket)
        frame: Summed = plan.layout
        transaction = BucketTransaction(self.transport)
        inspection = Inspection([segment.name for segment in bucket.segments], [transaction])
        try:
            flags = [USED if segment.used else UNUSED for segment in bucket.segments]
            tested = [segment.flat for segment in bucket.segments]
            for place in plan.dense:
                tested[place] = self._dense_input(bucket.segments[place])
            self._copy_dense(plan, frame.payloads, tested, flags)
            items = []
            for place in plan.coded:
                segment = bucket.segments[place]
                items.append((self._input(segment), self.key(segment.name)))
            rounds = self.memory.rounds(items, self.compressor)
            factors = next(rounds) if items else []
            # A factor is non-finite if its matrix is, and is much faster to check.
            for place, factor, (grad, _) in zip(plan.coded, factors, items):
                tested[place] = grad
                if factor.is_cpu and not finite(factor):
                    flags[place] = NONFINITE
            on_device = None if frame.frame.is_cpu else kernels.of(frame.frame).finite_each(tested)
            frame.flags.copy_(SumFrame.lanes(joined(flags, on_device)))
            pendings = yield from self._run(rounds, factors, frame.frame, plan.coded, inspection)
            for place, total in zip(plan.dense, frame.payloads):
                inspection.add(0, place, self._dense_fault(total))
            for place, pending in zip(plan.coded, pendings):
                transaction.add(place, self.memory, pending)
            commit = yield inspection.summed(frame.flags, self.transport.size)
        except BaseException:
            transaction.abort()
            raise
        left = self._decide(bucket, transaction, inspection.joint, commit)
        for place in plan.coded:
            if place in left:
                segment = bucket.segments[place]
                out = self._output(segment)
                if commit:
                    transaction.conclude(place, out)
                else:
                    pending = transaction.pending(place)
                    self.compressor.combine_(out, [pending.payload], pending.ctx)
                self._store(segment, out)
        sums = {place: slot for place, slot in zip(plan.dense, frame.payloads) if place in left}
        self._dense_results(bucket, list(sums), [list(sums.values())], commit)

    def _run(
        self,
        rounds: Generator[list[Tensor], list[Tensor], list[Pending]],
        factors: list[Tensor],
        first: Tensor,
        places: Sequence[int],
        inspection: Inspection,
    ) -> Generator[Request | Verdict, Any, list[Pending]]:
        """Drive the rounds of a bucket's matrices, starting with `factors`; `first` is sent along with them."""
        size = self.transport.size
        if not factors:
            yield Sum(first)
            return []
        try:
            extra = [first]
            while True:
                frame = torch.cat([*(f.reshape(-1) for f in factors), *extra])
                yield Sum(frame)
                parts = frame.split([*(f.numel() for f in factors), *(e.numel() for e in extra)])
                for mine, total in zip(extra, parts[len(factors) :]):
                    mine.copy_(total)
                extra = []
                torch._foreach_div_(parts[: len(factors)], size)
                for place, mean in zip(places, parts):
                    # Products of larger factors overflow.
                    inspection.add(
                        0, place, kernels.of(mean).check_scales(mean.abs(), FACTOR_LIMIT[mean.dtype])
                    )
                factors = rounds.send([p.view(f.shape) for p, f in zip(parts, factors)])
        except StopIteration as end:
            return end.value
        finally:
            rounds.close()


def _no_fault(codes: list[float]) -> tuple[bool, list[Exception]]:
    return not codes[0], []
