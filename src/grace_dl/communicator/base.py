"""The base class of communicators: a compressor, a memory and an exchange of payloads."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..compressor.base import Compressor
from ..errors import UnsupportedError
from ..key import Key
from ..memory.base import Memory
from ..memory.conversion import SavedMemory, convert
from ..memory.none import NoneMemory
from ..pipeline.bucket import Bucket, Segment
from ..pipeline.driver import Program
from ..pipeline.outline import Estimate, Stage
from ..transport import Transport
from .state import State


@dataclass(slots=True)
class Plan:
    """The plan of a bucket, built once and used at every step: its layout and frame buffers."""

    signature: tuple[Any, ...]
    coded: list[int]
    """Indices of the segments that are compressed."""
    dense: list[int]
    """Indices of the segments that are sent uncompressed."""
    layout: Any


class Joined(NamedTuple):
    """A rank's saved memories, independent of the communicator that saved them."""

    memory: SavedMemory
    """Whole parameters."""
    of_average: Mapping[str, Tensor] = {}
    """What this rank has not sent of averages over ranks that it encoded: flat, by parameter."""
    inner: SavedMemory = {}
    """Of a communicator of two levels: the memory within nodes."""
    owners: SavedMemory = {}
    """Of a communicator of two levels: which rank of a node has a parameter's other state."""


class Communicator:
    """Encodes gradients, exchanges payloads with all ranks and stores the average.

    It holds the memory of one method and the plans of its buckets; a session owns it. Subclasses define `program`, and
    declare which compressors they support; most derive from `SegmentCommunicator`. `dense_below`: parameters with fewer
    elements are sent uncompressed in the same frame. `seed` is the seed of all random draws. `label` names the method in
    messages.
    """

    name: ClassVar[str] = ""
    sums: ClassVar[bool] = False
    """Whether payloads of all ranks are summed during the exchange."""
    compresses_twice: ClassVar[bool] = False
    """Whether averages are compressed again on their way to the ranks."""
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

    def relative_traffic(self) -> float | None:
        """About what leaves a rank for a large parameter, over a ring all-reduce of it in float32; None: unknown, or little."""
        return None

    in_groups: ClassVar[bool] = False
    """Whether ranks exchange in groups, and learn whether others failed from `joint` only."""

    def connect(self) -> None:
        """Open the channels of groups of ranks, if it has any. All ranks call it, once they have agreed on the method."""

    def joint(self, finite: bool, failed: bool, device: torch.device) -> bool:
        """Whether a step is finite on all ranks; raises if it failed on another. All ranks call it, if `in_groups`."""
        return finite

    # State --------------------------------------------------------------------------------------------

    def memories(self) -> dict[str, Memory]:
        """Its memories, by label."""
        return {"memory": self.memory}

    def owed(self, name: str) -> Tensor | None:
        """The residual of a parameter in its memories, flat, in units of the gradient."""
        found = self.memory.residual(name)
        return None if found is None else found.view(-1)

    @classmethod
    def joined(cls, memory: Memory, saved: Mapping[str, SavedMemory], rank: int, size: int) -> Joined:
        """The saved memories of `rank` of `size` in the form that all communicators share, so that state can move
        between them."""
        return Joined(saved["memory"])

    def joined_by(
        self, way: type[Communicator], saved: Mapping[str, SavedMemory], rank: int, size: int
    ) -> Joined:
        """The memories of `rank` of `size` with this method, which `way` has saved."""
        return way.joined(self.memory, saved, rank, size)

    @property
    def saved_as(self) -> str:
        """Which communicator saved a state."""
        return self.name

    def converted(
        self, old: Sequence[Joined], rank: int, size: int
    ) -> tuple[dict[str, SavedMemory], dict[str, Tensor]]:
        """The state of `rank` of `size` ranks, from the states of all ranks of a job with a different number of them.

        Returns memories by label, and residuals to carry by parameter, in units of the gradient.
        """
        memories: dict[str, SavedMemory] = {label: {} for label in self.memories()}
        memories["memory"] = convert(self.memory, [state.memory for state in old], rank, size)
        carried = {name: torch.zeros_like(owed) for state in old for name, owed in state.of_average.items()}
        for state in old[rank::size]:
            for name, owed in state.of_average.items():
                # Of the average over ranks: one rank carries it for all.
                carried[name] += owed * self.transport.size
        return memories, carried

    def misplaced(self, saved: Mapping[str, SavedMemory]) -> str | None:
        """Why memories that a rank with this rank's number has saved do not fit here; None if they do."""
        return None

    def take(self, name: str, other: Communicator) -> None:
        """Take over a parameter's state: unchanged from memories of the same kind, otherwise as a residual."""
        if self._alike(other):
            mine = self.memories()
            for label, memory in other.memories().items():
                for key in memory.keys_of(name):
                    mine[label].state[key] = memory.state.pop(key)
                    mine[label].observe([key])
            return
        other.release(name)

    def release(self, name: str) -> None:
        """Drop a parameter's state; its residual is carried over."""
        self.state.carry(name, self.owed(name))
        memories = self.memories().values()
        if not all(isinstance(memory, NoneMemory) for memory in memories):
            self.state.moved.add(name)
        for memory in memories:
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

    def outline(self, bucket: Bucket, estimate: Estimate | None = None) -> list[Stage]:
        """The stages of `program` for a bucket without data: requests, and what is encoded and decoded for each.

        `estimate`: expected payload bytes, for compressors whose payload size depends on the data.
        """
        raise UnsupportedError(
            f"{self.label} goes through {self.name or type(self).__name__}, which has no outline."
        )

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

    def _dense_flags(self, bucket: Bucket) -> list[bool]:
        return [self._is_dense(segment, bucket) for segment in bucket.segments]

    def _plan(self, bucket: Bucket) -> Plan:
        dense = self._dense_flags(bucket)
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

    def description(self) -> dict[str, Any]:
        """The method with all settings, which must be the same on every rank."""
        return {
            "method": self.label,
            "communicator": self.name,
            "compressor": _plain(self.compressor.settings()),
            "memory": [type(self.memory).__name__, _plain(self.memory.settings())],
            "seed": self.seed,
            "dense_below": self.dense_below,
        }

    def _agree(self, signature: tuple[Any, ...]) -> None:
        dtype, segments = signature
        layout = {"dtype": str(dtype), "parameters": segments}
        self.transport.agree(json.dumps({**self.description(), **layout}))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.compressor!r}, {self.memory!r})"


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, (int, float, str, type(None))) else repr(value)
        for name, value in settings.items()
    }
