"""Communicators whose programs encode, check and store the segments of a bucket one by one, compressed or not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Payload, Spec, narrow, work_dtype, working
from ..kernels.faults import Fault
from ..pipeline.bucket import Bucket, Segment
from ..pipeline.frame import NONFINITE, UNUSED, USED
from .base import Communicator, Plan
from .transaction import BucketTransaction, joined


class SegmentCommunicator(Communicator):
    """What the programs of communicators share: encoding into a frame, values sent uncompressed, and storing results."""

    def _spec(self, segment: Segment, dense: bool) -> Spec | None:
        dtype, numel = segment.flat.dtype, segment.flat.numel()
        return ((dtype, numel),) if dense else self.compressor.spec(numel, work_dtype(dtype))

    def _input(self, segment: Segment) -> Tensor:
        """A segment's gradient as compressor input, including the residual of a previous method."""
        grad = segment.view
        if self.compressor.layout_free:
            # In the parameter's shape, but in memory order.
            grad = working(grad if grad.is_contiguous() else segment.flat.view(grad.shape))
        owed = self.state.owed(segment.name, grad)
        return grad if owed is None else grad + owed.to(grad.dtype).view(grad.shape)

    def _output(self, segment: Segment) -> Tensor:
        """Where a segment's result is computed; `_store` copies it to its destination."""
        return _flat_output(segment) if self.compressor.layout_free else segment.view

    def _begin(
        self, bucket: Bucket, plan: Plan, transaction: BucketTransaction, slots: Sequence[Payload | None]
    ) -> Tensor:
        """Encode every segment, into its slots of a frame if it has any; returns their flags."""
        inputs = [bucket.segments[0].flat] * len(bucket.segments)
        for place in plan.coded:
            inputs[place] = self._input(bucket.segments[place])
        for place in plan.dense:
            inputs[place] = self._dense_input(bucket.segments[place])
        finite = self._clean(bucket, inputs)
        flags = [USED if segment.used else UNUSED for segment in bucket.segments]
        pieces = [(inputs[p], self.key(bucket.segments[p].name), slots[p]) for p in plan.coded]
        used = [bucket.segments[place].used for place in plan.coded]
        begun = transaction.begin_all(
            plan.coded, self.memory, self.compressor, pieces, used, finite is not None
        )
        for place, flag in zip(plan.coded, begun):
            flags[place] = flag
        raw = [slots[place] for place in plan.dense]
        self._copy_dense(plan, [slot[0] for slot in raw if slot is not None], inputs, flags)
        return joined(flags, finite)

    def _clean(self, bucket: Bucket, inputs: Sequence[Tensor]) -> Tensor | None:
        """On a device: which inputs are finite, known there only; NaN and infinity in the others become 0.

        Encoding goes on as if all were finite, because asking would stop the host. State stays finite, so that a step
        which the verdict then aborts can be rolled back. On the CPU gradients are checked as they are encoded.
        """
        if bucket.device.type == "cpu":
            return None
        finite = kernels.of(inputs[0]).finite_each(inputs)
        whole = bucket.flat is not None and bucket.flat.dtype == work_dtype(bucket.dtype)
        for tensor in [bucket.flat] if whole and not self.state.carried else inputs:
            assert tensor is not None
            tensor.nan_to_num_(0.0, 0.0, 0.0)
        return finite

    def _dense_input(self, segment: Segment) -> Tensor:
        """An uncompressed segment's gradient, including the residual of a previous method."""
        owed = self.state.owed(segment.name, segment.flat) if self.state.carried else None
        return segment.flat if owed is None else working(segment.flat) + owed.view(-1)

    @staticmethod
    def _copy_dense(plan: Plan, slots: Sequence[Tensor], inputs: Sequence[Tensor], flags: list[int]) -> None:
        """Copy the uncompressed segments into their slots, and flag those that are known not to be finite.

        All in one call, because there are many and most are small.
        """
        if not slots:
            return
        raw = [inputs[place] for place in plan.dense]
        if not slots[0].is_cpu:
            return torch._foreach_copy_(list(slots), raw)
        finite = kernels.of(slots[0]).copy_finite_(slots, raw)
        for place, slot, good in zip(plan.dense, slots, finite, strict=True):
            if not good:
                flags[place] = NONFINITE
                slot.zero_()

    def _dense_fault(self, values: Tensor) -> Fault:
        """Check values that are summed over ranks, or sums of all ranks."""
        most = torch.finfo(work_dtype(values.dtype)).max * self.memory.dense_share
        return kernels.of(values).check_values(values, most if self.sums else most / self.transport.size)

    def _decide(
        self, bucket: Bucket, transaction: BucketTransaction, flags: Sequence[int], commit: bool
    ) -> set[int]:
        """Abort invalid segments and count the steps of the others, which remain to be committed.

        Returns the indices of the segments whose result is to be computed.
        """
        left = set()
        for place, (segment, flag) in enumerate(zip(bucket.segments, flags)):
            if commit and flag == USED:
                self.state.commit(segment.name)
            else:
                transaction.settle(place, commit=False)
            if not self._conclude_flagged(segment, flag):
                left.add(place)
        return left

    def _dense_results(
        self, bucket: Bucket, places: Sequence[int], parts: Sequence[Sequence[Tensor]], commit: bool
    ) -> None:
        """Set uncompressed segments to the average over ranks.

        `parts` are lists alongside `places`: one for each rank, or one of sums.
        """
        if not places:
            return
        segments = [bucket.segments[place] for place in places]
        outs = [_flat_output(segment) for segment in segments]
        kernels.of(outs[0]).average_(outs, parts, float(self._dense_divisor(parts[0][0].dtype)))
        if commit:
            self.memory.after_dense_(outs, [segment.name for segment in segments])
        for segment, out in zip(segments, outs):
            self._store(segment, out)

    def _dense_divisor(self, dtype: torch.dtype) -> int:
        """What the sum of uncompressed values over ranks is divided by, if they were sent as `dtype`."""
        return self.transport.size

    @staticmethod
    def _store(segment: Segment, out: Tensor) -> None:
        if out.dtype != segment.flat.dtype:
            segment.flat.copy_(narrow(out.view(-1), segment.flat.dtype))

    def _conclude_flagged(self, segment: Segment, flag: int) -> bool:
        """Set the result of a segment that has nothing to decode; returns False for an ordinary segment.

        A parameter that no rank used keeps the gradient it has, as with plain DDP.
        """
        segment.used = flag != UNUSED
        if flag == NONFINITE:
            segment.flat.fill_(float("nan"))
        return flag in (NONFINITE, UNUSED)


def _flat_output(segment: Segment) -> Tensor:
    """A segment's own buffer, or one in the working dtype if its own dtype is narrower."""
    dtype = work_dtype(segment.flat.dtype)
    return segment.flat if segment.flat.dtype == dtype else torch.empty_like(segment.flat, dtype=dtype)
