"""What a communicator is: compressor, memory and a way for payloads to meet, behind one `step`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from .. import kernels, registry
from ..compressor.base import Compressor, Payload, Spec, narrow, work_dtype, working
from ..errors import ConfigError, StateError
from ..key import Key
from ..memory.base import Memory
from ..memory.none import NoneMemory
from ..pipeline.bucket import Bucket, Segment, single
from ..pipeline.exchange import Exchange, Program
from ..pipeline.frame import NONFINITE, UNUSED, USED
from ..telemetry import Stats
from ..transport import Transport, detect
from .kept import Kept
from .ledger import Ledger

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from ..dist.attach import Attached
    from ..dist.optimizer import AttachedOptimizer


@dataclass(slots=True)
class Plan:
    """What is prepared once for a bucket and used every step: its layout and the buffers of its frames."""

    signature: tuple[Any, ...]
    coded: list[int]
    """Places of the segments that are compressed."""
    dense: list[int]
    """Places of those that travel as they are."""
    layout: Any


class Communicator(Kept):
    """Compresses gradients, exchanges them with all ranks and gives back the average.

    `world_size` may be given, as scripts do; it is then checked. `dense_below`: parameters with fewer elements travel
    uncompressed in the same frame (`step` compresses always). `seed` is the seed of all randomness.
    """

    kind: ClassVar[str] = ""

    def __init__(
        self,
        compressor: Compressor,
        memory: Memory | None = None,
        world_size: int | None = None,
        *,
        transport: Transport | None = None,
        seed: int = 0,
        dense_below: int | None = None,
    ) -> None:
        if not isinstance(compressor, Compressor):
            raise ConfigError(
                f"compressor={compressor!r} is no Compressor object; pass one, such as TopKCompressor(0.01), or "
                "use grace_from_params({'compressor': 'topk'})."
            )
        if dense_below is not None and dense_below < 0:
            raise ConfigError(
                f"dense_below={dense_below} must not be negative; 0 compresses every parameter."
            )
        if world_size is not None and (not isinstance(world_size, int) or world_size < 1):
            raise ConfigError(f"world_size={world_size!r} must be a positive whole number, or left out.")
        self.method = registry.method_of(compressor)
        self.compressor = compressor
        self.memory = self._pair(memory)
        self.seed = int(seed)
        self.dense_below = (
            0 if compressor.whole_bucket else self.method.dense_below if dense_below is None else dense_below
        )
        self.stats = Stats()
        self._world_size = world_size
        self._transport: Transport | None = None
        self._plans: dict[Hashable, Plan] = {}
        super().__init__()
        if transport is not None:
            self.transport = transport

    # Building -----------------------------------------------------------------------------------------

    def _pair(self, memory: Memory | None) -> Memory:
        method, kind = self.method, type(self).kind
        if kind and kind not in method.communicators:
            raise ConfigError(
                f"{method.name} cannot go through {kind}: {_REASONS[kind]}. "
                f"It goes through: {', '.join(method.communicators)}."
            )
        name = registry.memory_name(memory) if memory is not None else method.memories[0]
        if name == "none" and "none" not in method.memories:
            # Momenta and factors are part of such a method; scripts that name no memory mean the method's own.
            memory, name = None, method.memories[0]
        if memory is None:
            assert name is not None
            memory = partner(registry.memory_class(name), self.compressor)
        elif name is not None and name not in method.memories:
            raise ConfigError(
                f"{method.name} does not work with memory {name!r}. It works with: {', '.join(method.memories)}."
            )
        known = {**method.warn, **self.compressor.warn}
        if name in known:
            warnings.warn(f"{method.name} with memory {name!r}: {known[name]}", stacklevel=4)
        self.compressor = self.compressor.paired(feedback=not isinstance(memory, NoneMemory))
        return memory

    @property
    def transport(self) -> Transport:
        """The engine below; found when first needed, so that objects may be built before it is initialised."""
        if self._transport is None:
            self.transport = detect()
        assert self._transport is not None
        return self._transport

    @transport.setter
    def transport(self, transport: Transport) -> None:
        if self._world_size is not None and self._world_size != transport.size:
            raise ConfigError(
                f"world_size={self._world_size} was given, but {transport.size} ranks run here; "
                "leave world_size out, or start as many workers as it says."
            )
        if self._loaded_rank is not None and self._loaded_rank != (transport.rank, transport.size):
            rank, size = self._loaded_rank
            raise StateError(
                f"the state of rank {rank} of {size} was loaded on rank {transport.rank} of {transport.size}; "
                "every rank saves and loads its own."
            )
        self._transport = transport
        # Buffers and comparisons of layouts belong to the ranks they were made for.
        self._plans.clear()
        transport.open(self.channels)

    @property
    def channels(self) -> int:
        """How many rounds a bucket may take."""
        return 1

    # Use ----------------------------------------------------------------------------------------------

    def step(self, tensor: Tensor, name: str) -> Tensor:
        """Exchange one tensor with all ranks; returns the result, of the same shape and dtype."""
        return self.receive_step(*self.send_step(tensor, name))

    def send_step(self, tensor: Tensor, name: str) -> tuple[Exchange, Bucket]:
        """Compress and send; give what is returned to `receive_step`."""
        bucket = single(tensor, name)
        exchange = Exchange(self)
        if bucket.segments[0].flat.numel():
            exchange.launch(bucket)
        return exchange, bucket

    def receive_step(self, exchange: Exchange, bucket: Bucket) -> Tensor:
        """Wait for what `send_step` began; returns the result."""
        exchange.finish()
        return bucket.segments[0].view

    def attach(
        self,
        target: DistributedDataParallel | torch.optim.Optimizer,
        scaler: Any = None,
        *,
        named_parameters: Iterable[tuple[str, Tensor]] | None = None,
        **options: Any,
    ) -> Attached | AttachedOptimizer:
        """Compress gradients while the backward pass runs.

        `target`: a `DistributedDataParallel` model; or, under Horovod or without DDP, an optimizer together with
        `named_parameters=model.named_parameters()`. `scaler`: the GradScaler in use, if any, so that state follows its
        changes of scale.
        """
        if isinstance(target, torch.optim.Optimizer):
            from ..dist.optimizer import AttachedOptimizer

            return AttachedOptimizer(self, target, named_parameters, scaler, **options)
        if named_parameters is not None or options:
            raise ConfigError(
                "named_parameters and further options go with an optimizer; a DDP model knows its parameters."
            )
        from ..dist.attach import Attached

        return Attached(self, target, scaler)

    # Exchange -----------------------------------------------------------------------------------------

    def exchange(self, bucket: Bucket) -> Program:
        """The rounds of one bucket: yields requests, then a verdict; then settles memory and decodes."""
        raise NotImplementedError

    def key(self, name: str, base: str | None = None) -> Key:
        """The key of the next draw for `name`; pieces of a parameter share the step of their `base`."""
        transport = self.transport
        step = self._steps.get(base or name, 0)
        return Key(name, self.seed, step, transport.rank, transport.size, self.kind == "allreduce")

    def _is_dense(self, segment: Segment, bucket: Bucket) -> bool:
        numel = segment.flat.numel()
        small = numel == 0 or (numel < self.dense_below and not bucket.compress_all)
        return small or not self.compressor.takes(segment.view.shape, self._steps.get(segment.name, 0))

    def _plan(self, bucket: Bucket) -> Plan:
        # Parameters that were unused for a while lag in steps.
        self.compressor.advance(max(self._steps.get(segment.name, 0) for segment in bucket.segments))
        dense = [self._is_dense(segment, bucket) for segment in bucket.segments]
        signature = (
            bucket.dtype,
            self.compressor.phase,
            tuple((s.name, s.flat.numel(), d) for s, d in zip(bucket.segments, dense)),
        )
        plan = self._plans.get(bucket.key)
        if plan is None or plan.signature != signature:
            self._agree(signature)
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
        """Whatever a subclass prepares for a bucket."""
        raise NotImplementedError

    def _agree(self, signature: tuple[Any, ...]) -> None:
        dtype, phase, segments = signature
        text = json.dumps(
            {
                "method": self.method.name,
                "communicator": self.kind,
                "compressor": _plain(self.compressor.settings()),
                "memory": [type(self.memory).__name__, _plain(self.memory.settings())],
                "seed": self.seed,
                "dense_below": self.dense_below,
                "dtype": str(dtype),
                "phase": repr(phase),
                "parameters": segments,
            }
        )
        self.transport.agree(text)

    def _spec(self, segment: Segment, dense: bool) -> Spec | None:
        dtype, numel = segment.flat.dtype, segment.flat.numel()
        return ((dtype, numel),) if dense else self.compressor.spec(numel, work_dtype(dtype))

    def _input(self, segment: Segment) -> Tensor:
        """A segment's gradient as its compressor takes it, with what a former method still owed."""
        grad = segment.view
        if self.compressor.layout_free:
            # In the parameter's shape, but in memory order.
            grad = working(grad if grad.is_contiguous() else segment.flat.view(grad.shape))
        owed = self._carried.get(segment.name)
        return grad if owed is None else grad + owed.to(grad.dtype).view(grad.shape)

    def _output(self, segment: Segment) -> Tensor:
        """Where a segment's result is computed; `_store` brings it home."""
        return _flat_output(segment) if self.compressor.layout_free else segment.view

    def _begin(
        self, bucket: Bucket, plan: Plan, ledger: Ledger, slots: Sequence[Payload | None]
    ) -> list[int]:
        """Encode every segment, into its slots of a frame where there are any; returns their flags."""
        flags = [USED] * len(bucket.segments)
        coded = [bucket.segments[place] for place in plan.coded]
        pieces = [(self._input(s), self.key(s.name), slots[place]) for s, place in zip(coded, plan.coded)]
        used = [segment.used for segment in coded]
        begun = ledger.begin_all(plan.coded, self.memory, self.compressor, pieces, used)
        for place, flag in zip(plan.coded, begun):
            flags[place] = flag
        raw = [slots[place] for place in plan.dense]
        self._dense_in(bucket, plan, [slot[0] for slot in raw if slot is not None], flags)
        return flags

    def _dense_in(self, bucket: Bucket, plan: Plan, slots: Sequence[Tensor], flags: list[int]) -> None:
        """Bring the segments that travel as they are into their slots, and set their flags.

        With what a former method still owed. All together, because there are many of them and most are small.
        """
        if not slots:
            return
        segments = [bucket.segments[place] for place in plan.dense]
        inputs = [segment.flat for segment in segments]
        if self._carried:
            owed = [self._carried.get(segment.name) for segment in segments]
            inputs = [x if o is None else working(x) + o.view(-1) for x, o in zip(inputs, owed)]
        finite = kernels.of(slots[0]).copy_finite_(slots, inputs)
        for place, segment, slot, good in zip(plan.dense, segments, slots, finite, strict=True):
            flags[place] = (USED if segment.used else UNUSED) if good else NONFINITE
            if not good:
                slot.zero_()

    def _decide(self, bucket: Bucket, ledger: Ledger, flags: Sequence[int], commit: bool) -> set[int]:
        """Abort what does not count and count the steps of what does, which is left to commit.

        Returns the places of the segments whose result is to be computed.
        """
        left = set()
        for place, (segment, flag) in enumerate(zip(bucket.segments, flags)):
            if commit and flag == USED:
                self._stepped(segment.name)
            else:
                ledger.settle(place, commit=False)
            if not self._conclude_flagged(segment, flag):
                left.add(place)
        return left

    def _dense_results(
        self, bucket: Bucket, places: Sequence[int], parts: Sequence[Sequence[Tensor]], commit: bool
    ) -> None:
        """Set segments that travelled as they are to the average over ranks.

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
        """Set the result of a segment with nothing to decode; False for an ordinary one.

        A parameter that no rank used keeps the gradient it has, as with plain DDP.
        """
        segment.used = flag != UNUSED
        if flag == NONFINITE:
            segment.flat.fill_(float("nan"))
        return flag in (NONFINITE, UNUSED)

    def _stepped(self, name: str) -> None:
        """A parameter's step was committed."""
        self._steps[name] = self._steps.get(name, 0) + 1
        self._carried.pop(name, None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.compressor!r}, {self.memory!r})"


_REASONS = {
    "allreduce": "its payloads do not add up",
    "allgather": "it exchanges sums in several rounds",
    "broadcast": "it exchanges sums in several rounds",
    "alltoall": "a slice of a tensor cannot be compressed on its own, or its size varies",
}


def partner(memory: type[Memory], compressor: Compressor) -> Memory:
    """The memory a method goes with, given those of its settings that the memory also has."""
    settings = {
        p.name: getattr(compressor, p.name)
        for p in registry.parameters(memory)
        if getattr(compressor, p.name, None) is not None
    }
    return memory(**settings)


def _flat_output(segment: Segment) -> Tensor:
    """A segment's own memory, or that of its working dtype where its own is narrower."""
    dtype = work_dtype(segment.flat.dtype)
    return segment.flat if segment.flat.dtype == dtype else torch.empty_like(segment.flat, dtype=dtype)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, (int, float, str, type(None))) else repr(value)
        for name, value in settings.items()
    }
