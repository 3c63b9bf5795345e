"""Payloads are summed by all-reduce: traffic is less than twice the payload for any number of ranks."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..compressor.base import Compressor, work_dtype, working
from ..errors import ConfigError
from ..memory.base import Pending
from ..memory.none import NoneMemory
from ..pipeline.bucket import Bucket, Segment
from ..pipeline.driver import Program
from ..pipeline.frame import NONFINITE, UNUSED, USED, SumFrame
from ..pipeline.request import Request, Sum, Verdict
from .base import Communicator
from .transaction import BucketTransaction, finite, peer_errors


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


class Allreduce(Communicator):
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
            owing = any(segment.name in self.state.carried for segment in bucket.segments)
            return self._paying(bucket) if owing else self._whole(bucket, bucket.flat)
        if self.compressor.multi_round:
            return self._several(bucket)
        return self._one(bucket)

    # A whole bucket at once: no state, no flags; non-finite values survive the sum ---------------------

    def _whole(self, bucket: Bucket, flat: Tensor) -> Program:
        self._plan(bucket)
        x = flat if self.compressor.lossless else working(flat)
        payload, ctx = self.compressor.encode(x, self.key(bucket.segments[0].name))
        yield Sum(payload[0])
        # Without state nothing depends on the verdict: decode while later buckets are in flight.
        if payload[0].data_ptr() != x.data_ptr():
            x.zero_()
            self.compressor.accumulate_(x, payload, ctx)
        self.compressor.finish_(x, self._divisor)
        if x is not flat:
            flat.copy_(x)
        # Other buckets may carry residuals of a previous method, which a skipped step would lose.
        commit = yield Verdict(finite(flat) if self.state.carried else True)
        for segment in bucket.segments:
            if commit:
                self.state.commit(segment.name)

    def _paying(self, bucket: Bucket) -> Program:
        """A bucket that carries residuals of a previous method, with flags: an unused parameter keeps its residual."""
        key = (bucket.key, "paying")
        yield from self._one(Bucket(key, bucket.segments, compress_all=bucket.compress_all))
        self._plans.pop(key, None)  # its frame is not needed again

    @property
    def _divisor(self) -> int:
        """The remaining divisor of a sum: a method may divide before it sends."""
        return 1 if self.compressor.divides_first else self.transport.size

    # One round ----------------------------------------------------------------------------------------

    def _lay_out(self, bucket: Bucket, dense: Sequence[bool]) -> Summed | None:
        if self._stateless and bucket.flat is not None:
            return None
        if self.compressor.multi_round:
            return self._factors_frame(bucket, dense)
        specs = [self._spec(segment, d) for segment, d in zip(bucket.segments, dense)]
        coded = [spec for spec, d in zip(specs, dense) if not d]
        kinds = {kind for spec in coded if spec is not None for kind, _ in spec} or {bucket.dtype}
        if None in coded or len(kinds) > 1:
            raise ConfigError(
                f"{self.label} says its payloads sum, but their sizes or dtypes ({kinds}) differ; give it a spec "
                "of one tensor, or use Allgather."
            )
        counts = [sum(count for _, count in spec) for spec in specs if spec is not None]
        keep = not isinstance(self.memory, NoneMemory)
        return self._frame(counts, len(bucket.segments), kinds.pop(), bucket.device, keep)

    @staticmethod
    def _frame(
        counts: Sequence[int], flags: int, dtype: torch.dtype, device: torch.device, keep: bool = False
    ) -> Summed:
        layout = SumFrame(counts, flags)
        frame = torch.zeros(layout.numel, dtype=dtype, device=device)
        own = torch.zeros_like(frame) if keep else frame
        return Summed(frame, own, layout.split(own)[0], *layout.split(frame))

    def _one(self, bucket: Bucket) -> Program:
        plan = self._plan(bucket)
        summed: Summed = plan.layout
        transaction = BucketTransaction()
        try:
            flags = self._begin(bucket, plan, transaction, [[slot] for slot in summed.mine])
            if summed.own is not summed.frame:
                summed.frame.copy_(summed.own)
            summed.flags.copy_(torch.tensor([SumFrame.FLAGS[flag] for flag in flags]))
            yield Sum(summed.frame)
            joint = [SumFrame.read(total) for total in summed.flags.tolist()]
            commit = yield Verdict(
                all(f in (USED, UNUSED) for f in joint), transaction.errors or peer_errors(joint)
            )
        except BaseException:
            transaction.abort()
            raise
        left = self._decide(bucket, transaction, joint, commit)
        if commit:
            transaction.commit([place for place in plan.coded if place in left])
        for place in plan.coded:
            if place in left:
                segment = bucket.segments[place]
                out = self._output(segment)
                out.zero_()
                self.compressor.accumulate_(out, [summed.payloads[place]], transaction.pending(place).ctx)
                self.compressor.finish_(out, self._divisor)
                self._store(segment, out)
        dense = [place for place in plan.dense if place in left]
        self._dense_results(bucket, dense, [[summed.payloads[place] for place in dense]], commit)

    # Several rounds: factors of all matrices; dense parameters join the first ------------------------

    def _factors_frame(self, bucket: Bucket, dense: Sequence[bool]) -> Summed:
        counts = [segment.flat.numel() for segment, d in zip(bucket.segments, dense) if d]
        return self._frame(counts, len(bucket.segments), work_dtype(bucket.dtype), bucket.device)

    def _several(self, bucket: Bucket) -> Program:
        plan = self._plan(bucket)
        frame: Summed = plan.layout
        transaction = BucketTransaction()
        try:
            flags = [USED if segment.used else UNUSED for segment in bucket.segments]
            self._dense_in(bucket, plan, frame.payloads, flags)
            items = []
            for place in plan.coded:
                segment = bucket.segments[place]
                items.append((self._input(segment), self.key(segment.name)))
            rounds = self.memory.rounds(items, self.compressor)
            factors = next(rounds) if items else []
            # A factor is non-finite if its matrix is, and is much faster to check.
            for place, factor in zip(plan.coded, factors):
                if not finite(factor):
                    flags[place] = NONFINITE
            frame.flags.copy_(torch.tensor([SumFrame.FLAGS[flag] for flag in flags]))
            pendings = yield from self._run(rounds, factors, frame.frame)
            for place, pending in zip(plan.coded, pendings):
                transaction.add(place, self.memory, pending)
            joint = [SumFrame.read(value) for value in frame.flags.tolist()]
            commit = yield Verdict(
                all(f in (USED, UNUSED) for f in joint), transaction.errors or peer_errors(joint)
            )
        except BaseException:
            transaction.abort()
            raise
        left = self._decide(bucket, transaction, joint, commit)
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
                factors = rounds.send([p.view(f.shape) for p, f in zip(parts, factors)])
        except StopIteration as end:
            return end.value
        finally:
            rounds.close()
