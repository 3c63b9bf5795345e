"""User-defined exchanges: how a handle runs them, and helpers for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..algebra.base import Single
from ..communicator import base
from ..communicator.state import State
from ..compressor.base import Compressor, Payload
from ..errors import ConfigError
from ..memory.base import Memory
from ..pipeline.bucket import Bucket
from ..pipeline.driver import Program
from ..pipeline.frame import USED, pack, shaped_like, unpack
from ..pipeline.request import External, Verdict
from ..transport import Transport

Start = Callable[[Tensor, str, Transport], tuple[Callable[[], Tensor], int]]
"""Starts the exchange of a gradient; returns a function that waits for the result, and the bytes sent."""


class Ranks:
    """The number of ranks given by a script; checked against the first transport."""

    def __init__(self, world_size: int | None = None, rank: int | None = None) -> None:
        self.world_size, self.rank = world_size, rank
        self._checked = False

    def check(self, transport: Transport) -> None:
        """Reject a different number of ranks on first use; an elastic job may change it later."""
        if self._checked:
            return
        if self.world_size is not None and self.world_size != transport.size:
            raise ConfigError(
                f"world_size={self.world_size!r} was given, but there are {transport.size} ranks; leave it out, or pass the "
                "number of ranks."
            )
        if self.rank is not None and self.rank != transport.rank:
            raise ConfigError(
                f"rank={self.rank!r} was given, but this is rank {transport.rank}; leave it out."
            )
        self._checked = True


class Checked(Single):
    """`method` with a check of the number of ranks given by a script."""

    def __init__(self, method: Single, ranks: Ranks) -> None:
        self._method, self._ranks = method, ranks

    def build(
        self, transport: Transport, state: State, way: type[base.Communicator] | None = None
    ) -> base.Communicator:
        self._ranks.check(transport)
        return self._method.build(transport, state, way)

    def __str__(self) -> str:
        return str(self._method)

    def __repr__(self) -> str:
        return repr(self._method)


class OwnExchange(Single):
    """A method with a user-defined exchange, called for one gradient at a time."""

    def __init__(
        self, start: Start, compressor: Compressor, memory: Memory, ranks: Ranks, label: str
    ) -> None:
        self._start, self._compressor, self._memory = start, compressor, memory
        self._ranks, self._label = ranks, label

    def build(
        self, transport: Transport, state: State, way: type[base.Communicator] | None = None
    ) -> base.Communicator:
        if way is not None:
            raise ConfigError(
                f"{self} has an exchange of its own, but the target exchanges gradients by {way.name}; attach a method "
                "such as grace.int8()."
            )
        self._ranks.check(transport)
        return _Carrier(
            self._start, self._compressor, self._memory, transport=transport, state=state, label=str(self)
        )

    def __str__(self) -> str:
        return self._label

    __repr__ = __str__


class _Carrier(base.Communicator):
    """Calls a user-defined exchange for every parameter of a bucket, in the same order on all ranks."""

    name = "own"

    def __init__(self, start: Start, compressor: Compressor, memory: Memory, **options: Any) -> None:
        super().__init__(compressor, memory, **options)
        self._start = start

    def _lay_out(self, bucket: Bucket, dense: Sequence[bool]) -> None:
        return None

    def program(self, bucket: Bucket) -> Program:
        self._plan(bucket)  # ranks agree on the order of parameters
        begun = []
        for segment in bucket.segments:
            owed = self.state.carried.get(segment.name)
            grad = (
                segment.view if owed is None else segment.view + owed.to(bucket.dtype).view_as(segment.view)
            )
            begun.append(self._start(grad, segment.name, self.transport))
        yield External(sum(sent for _, sent in begun))
        commit = yield Verdict()
        for segment, (wait, _) in zip(bucket.segments, begun):
            segment.view.copy_(wait().view_as(segment.view))
            if commit:
                self.state.commit(segment.name)


def summed(transport: Transport, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The sums of tensors over ranks."""
    totals = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
    for total in totals:
        transport.allreduce(total.view(-1)).wait()
    return totals


def gathered(transport: Transport, tensors: Sequence[Tensor], device: torch.device) -> list[Payload]:
    """The tensors of every rank; their number must be the same on all ranks, their sizes may differ."""
    frame = pack([USED], [list(tensors)], device)
    lengths = torch.empty(transport.size, dtype=torch.int64, device=device)
    transport.allgather(lengths, torch.tensor([frame.numel()], dtype=torch.int64, device=device)).wait()
    longest = int(lengths.max())
    received = torch.empty(transport.size * longest, dtype=torch.uint8, device=device)
    transport.allgather(received, torch.nn.functional.pad(frame, (0, longest - frame.numel()))).wait()
    found = []
    for rank, (part, length) in enumerate(zip(received.split(longest), lengths.tolist())):
        _, (payload,) = unpack(part[:length], 1, rank)
        found.append(shaped_like(payload, tensors))
    return found
