"""The base class of communicators: a compressor, a memory and an exchange of payloads."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Compressor, Payload, Spec, narrow, work_dtype, working
from ..key import Key
from ..memory.base import Memory
from ..memory.none import NoneMemory
from ..pipeline.bucket import Bucket, Segment
from ..pipeline.driver import Program
from ..pipeline.frame import NONFINITE, UNUSED, USED
from ..transport import Transport
from .state import State
from .transaction import BucketTransaction


@dataclass(slots=True)
class Plan:
    """The plan of a bucket, built once and used at every step: its layout and frame buffers."""

    signature: tuple[Any, ...]
    coded: list[int]
    """Indices of the segments that are compressed."""
    dense: list[int]
    """Indices of the segments that are sent uncompressed."""
    layout: Any


class Communicator:
    """Encodes gradients, exchanges payloads with all ranks and stores the average.

    It holds the memory of one method and the plans of its buckets; a session owns it. Subclasses define `program`, and
    declare which compressors they support. `dense_below`: parameters with fewer elements are sent uncompressed in the
    same frame. `seed` is the seed of all random draws. `label` names the method in messages.
    """

    name: ClassVar[str] = ""
    sums: ClassVar[bool] = False
    """Whether payloads of all ranks are summed during the exchange."""
    refusal: ClassVar[str] = ""
    """Why it does not support some compressors."""

    def __init__(
        self,
        compressor: Compressor,
        memory: Memory,
        *,
        transport: Transport,
        state: State | None = None,
        seed: int = 0,
        dense_below: int = 0,
        label: str = "",
    ) -> None:
        self.compressor = compressor.paired(not isinstance(memory, NoneMemory))
        self.memory = memory
        self.transport = transport
        self.state = State() if state is None else state
        self.seed = seed
        self.dense_below = 0 if compressor.whole_bucket else dense_below
        self.label = label or repr(compressor)
        self._plans: dict[Hashable, Plan] = {}

    @classmethod
    def carries(cls, compressor: type[Compressor]) -> bool:
        """Whether it supports this compressor class."""
        return True

    @property
    def channels(self) -> int:
        """The maximum number of rounds per bucket."""
        return 1

    # State --------------------------------------------------------------------------------------------

    def memories(self) -> dict[str, Memory]:
        """Its memories, by label."""
        return {"memory": self.memory}

    def owed(self, name: str) -> Tensor | None:
        """The residual of a parameter in its memories, flat, in units of the gradient."""
        found = self.memory.residual(name)
        return None if found is None else found.view(-1)

    def take(self, name: str, other: Communicator) -> None:
        """Take over a parameter's state: unchanged from memories of the same kind, otherwise as a residual."""
        if self._alike(other):
            mine = self.memories()
            for label, memory in other.memories().items():
                for key in memory.keys_of(name):
                    mine[label].state[key] = memory.state.pop(key)
            return
        other.release(name)

    def release(self, name: str) -> None:
        """Drop a parameter's state; its residual is carried over."""
        self.state.carry(name, self.owed(name))
        for memory in self.memories().values():
            for key in memory.keys_of(name):
                del memory.state[key]

    def _alike(self, other: Communicator) -> bool:
        return (
            type(self) is type(other)
            and type(self.memory) is type(other.memory)
            and self.memory.settings() == other.memory.settings()
        )

    def forget_plans(self) -> None:
        """Drop the plans of buckets: the buckets or the ranks have changed."""
        self._plans.clear()

    # Exchange -----------------------------------------------------------------------------------------

    def program(self, bucket: Bucket) -> Program:
        """The rounds of one bucket: yields requests, then a verdict; then commits or aborts, and decodes."""
        raise NotImplementedError

    def key(self, name: str, base: str | None = None) -> Key:
        """The key of the next draw for `name`; pieces of a parameter share the step of their `base`."""
        return Key(
            name,
            self.seed,
            self.state.step(base or name),
            self.transport.rank,
            self.transport.size,
            self.sums,
        )

    def _is_dense(self, segment: Segment, bucket: Bucket) -> bool:
        numel = segment.flat.numel()
        small = numel == 0 or (numel < self.dense_below and not bucket.compress_all)
        return small or not self.compressor.takes(segment.view.shape)

    def _plan(self, bucket: Bucket) -> Plan:
        dense = [self._is_dense(segment, bucket) for segment in bucket.segments]
        signature = (
            bucket.dtype,
            tuple((s.name, s.flat.numel(), d) for s, d in zip(bucket.segments, dense)),
        )
        plan = self._plans.get(bucket.key)
        if plan is None or plan.signature != signature:
            self._agree(signature)
            for segment, d in zip(bucket.segments, dense):
                # Compressed until now (by settings of a previous method): its residual would never be sent.
                if d and self.owed(segment.name) is not None:
                    self.release(segment.name)
            coded = [place for place, d in enumerate(dense) if not d]
            plan = Plan(
                signature,
                coded,
                [place for place, d in enumerate(dense) if d],
                self._lay_out(bucket, dense),
            )
            self._plans[bucket.key] = plan
        return plan

    def _lay_out(self, bucket: Bucket, dense: Sequence[bool]) -> Any:
        """The subclass's part of the plan of a bucket."""
        raise NotImplementedError

    def _agree(self, signature: tuple[Any, ...]) -> None:
        dtype, segments = signature
        text = json.dumps(
            {
                "method": self.label,
                "communicator": self.name,
                "compressor": _plain(self.compressor.settings()),
                "memory": [type(self.memory).__name__, _plain(self.memory.settings())],
                "seed": self.seed,
                "dense_below": self.dense_below,
                "dtype": str(dtype),
                "parameters": segments,
            }
        )
        self.transport.agree(text)

    def _spec(self, segment: Segment, dense: bool) -> Spec | None:
        dtype, numel = segment.flat.dtype, segment.flat.numel()
        return ((dtype, numel),) if dense else self.compressor.spec(numel, work_dtype(dtype))

    def _input(self, segment: Segment) -> Tensor:
        """A segment's gradient as compressor input, including the residual of a previous method."""
        grad = segment.view
        if self.compressor.layout_free:
            # In the parameter's shape, but in memory order.
            grad = working(grad if grad.is_contiguous() else segment.flat.view(grad.shape))
        owed = self.state.carried.get(segment.name)
        return grad if owed is None else grad + owed.to(grad.dtype).view(grad.shape)

    def _output(self, segment: Segment) -> Tensor:
        """Where a segment's result is computed; `_store` copies it to its destination."""
        return _flat_output(segment) if self.compressor.layout_free else segment.view

    def _begin(
        self, bucket: Bucket, plan: Plan, transaction: BucketTransaction, slots: Sequence[Payload | None]
    ) -> list[int]:
        """Encode every segment, into its slots of a frame if it has any; returns their flags."""
        flags = [USED] * len(bucket.segments)
        coded = [bucket.segments[place] for place in plan.coded]
        pieces = [(self._input(s), self.key(s.name), slots[place]) for s, place in zip(coded, plan.coded)]
        used = [segment.used for segment in coded]
        begun = transaction.begin_all(plan.coded, self.memory, self.compressor, pieces, used)
        for place, flag in zip(plan.coded, begun):
            flags[place] = flag
        raw = [slots[place] for place in plan.dense]
        self._dense_in(bucket, plan, [slot[0] for slot in raw if slot is not None], flags)
        return flags

    def _dense_in(self, bucket: Bucket, plan: Plan, slots: Sequence[Tensor], flags: list[int]) -> None:
        """Copy the uncompressed segments into their slots, and set their flags.

        Includes the residual of a previous method. All in one call, because there are many and most are small.
        """
        if not slots:
            return
        segments = [bucket.segments[place] for place in plan.dense]
        inputs = [segment.flat for segment in segments]
        if self.state.carried:
            owed = [self.state.carried.get(segment.name) for segment in segments]
            inputs = [x if o is None else working(x) + o.view(-1) for x, o in zip(inputs, owed)]
        finite = kernels.of(slots[0]).copy_finite_(slots, inputs)
        for place, segment, slot, good in zip(plan.dense, segments, slots, finite, strict=True):
            flags[place] = (USED if segment.used else UNUSED) if good else NONFINITE
            if not good:
                slot.zero_()

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
        kernels.of(outs[0]).average_(outs, parts, float(self.transport.size))
        if commit:
            self.memory.after_dense_(outs, [segment.name for segment in segments])
        for segment, out in zip(segments, outs):
            self._store(segment, out)

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.compressor!r}, {self.memory!r})"


def _flat_output(segment: Segment) -> Tensor:
    """A segment's own buffer, or one in the working dtype if its own dtype is narrower."""
    dtype = work_dtype(segment.flat.dtype)
    return segment.flat if segment.flat.dtype == dtype else torch.empty_like(segment.flat, dtype=dtype)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, (int, float, str, type(None))) else repr(value)
        for name, value in settings.items()
    }
