"""Requests for collectives, as values; the driver issues them in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..transport.base import All, Done, Handle, Transport


@dataclass(slots=True)
class Sum:
    """Replace `tensor` by its sum over ranks."""

    tensor: Tensor

    def issue(self, transport: Transport, channel: int) -> Handle:
        return transport.allreduce(self.tensor, channel)

    @property
    def payload_bytes(self) -> int:
        return self.tensor.nbytes

    def leaving_bytes(self, size: int) -> int:
        return 2 * self.tensor.nbytes * (size - 1) // size


@dataclass(slots=True)
class Gather:
    """Gather `tensor`, of the same length on every rank, into `out`."""

    out: Tensor
    tensor: Tensor
    counts: bool = True
    """Whether it counts as payload (a second phase repeats what the first has counted)."""

    def issue(self, transport: Transport, channel: int) -> Handle:
        return transport.allgather(self.out, self.tensor, channel)

    @property
    def payload_bytes(self) -> int:
        return self.tensor.nbytes if self.counts else 0

    def leaving_bytes(self, size: int) -> int:
        return self.tensor.nbytes * (size - 1)


@dataclass(slots=True)
class Spread:
    """Like `Gather`, with one broadcast per rank; `parts` are the slots of all ranks, with this rank's filled in."""

    parts: Sequence[Tensor]
    rank: int

    def issue(self, transport: Transport, channel: int) -> Handle:
        return All([transport.broadcast(part, root, channel) for root, part in enumerate(self.parts)])

    @property
    def payload_bytes(self) -> int:
        return self.parts[self.rank].nbytes

    def leaving_bytes(self, size: int) -> int:
        return self.parts[self.rank].nbytes * (size - 1)


@dataclass(slots=True)
class Swap:
    """Send each rank its part of `tensor`, and receive theirs in `out`."""

    out: Tensor
    tensor: Tensor
    out_splits: Sequence[int]
    in_splits: Sequence[int]
    rank: int

    def issue(self, transport: Transport, channel: int) -> Handle:
        return transport.alltoall(self.out, self.tensor, self.out_splits, self.in_splits, channel)

    @property
    def payload_bytes(self) -> int:
        return self.tensor.nbytes

    def leaving_bytes(self, size: int) -> int:
        return self.tensor.nbytes - self.in_splits[self.rank] * self.tensor.element_size()


@dataclass(slots=True)
class External:
    """Counts an exchange run by user code."""

    payload_bytes: int

    def issue(self, transport: Transport, channel: int) -> Handle:
        return Done()

    def leaving_bytes(self, size: int) -> int:
        return self.payload_bytes if size > 1 else 0


@dataclass(slots=True)
class Verdict:
    """All rounds are complete. The reply is whether every bucket of the step was finite on every rank."""

    finite: bool = True
    errors: list[Exception] = field(default_factory=list)


Request = Sum | Gather | Spread | Swap | External
