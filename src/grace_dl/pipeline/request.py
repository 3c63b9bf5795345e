"""Requests for collectives, as values; the driver issues them in order.

`read`: whether the host reads what arrives before the step's verdict, and so has to wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor

from ..transport.base import All, Done, Handle, Transport


@dataclass(slots=True)
class Sum:
    """Replace `tensor` by its sum over ranks."""

    read: ClassVar[bool] = False
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
    read: bool = False

    def issue(self, transport: Transport, channel: int) -> Handle:
        return transport.allgather(self.out, self.tensor, channel)

    @property
    def payload_bytes(self) -> int:
        return self.tensor.nbytes if self.counts else 0

    def leaving_bytes(self, size: int) -> int:
        return self.tensor.nbytes * (size - 1)


@dataclass(slots=True)
class Spread:
    """Like `Gather`, with one broadcast per rank; `parts` are the slots of all ranks, with this rank's filled in.

    Slots may have different sizes.
    """

    parts: Sequence[Tensor]
    rank: int
    read: bool = False

    def issue(self, transport: Transport, channel: int) -> Handle:
        roots = [root for root, part in enumerate(self.parts) if part.numel()]
        return All([transport.broadcast(self.parts[root], root, channel) for root in roots])

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
    read: bool = False

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

    read: ClassVar[bool] = False
    payload_bytes: int

    def issue(self, transport: Transport, channel: int) -> Handle:
        return Done()

    def leaving_bytes(self, size: int) -> int:
        return self.payload_bytes if size > 1 else 0


@dataclass(slots=True)
class Grouped:
    """A request among the ranks of a group: those of a node, or one of every node."""

    request: Sum | Gather | Spread | Swap | External
    transport: Transport
    between: bool
    """Whether the ranks are on different nodes. The first round of a bucket is within its node, always on channel 0."""
    load: float = 1.0
    """For the cost model: all bytes that leave the node meanwhile, relative to those of this rank."""

    def issue(self, transport: Transport, channel: int) -> Handle:
        return self.request.issue(self.transport, max(channel - 1, 0) if self.between else 0)

    @property
    def read(self) -> bool:
        return self.request.read

    @property
    def payload_bytes(self) -> int:
        return self.request.payload_bytes if self.between else 0

    def leaving_bytes(self, size: int) -> int:
        return self.request.leaving_bytes(self.transport.size)


@dataclass(slots=True)
class Idle:
    """A round in which this rank exchanges nothing while others may."""

    read: ClassVar[bool] = False
    payload_bytes: int = 0

    def issue(self, transport: Transport, channel: int) -> Handle:
        return Done()

    def leaving_bytes(self, size: int) -> int:
        return 0


@dataclass(slots=True)
class Verdict:
    """All rounds are complete, and nothing is decoded or committed yet.

    `codes` are what the program must know before it goes on: flags of all ranks, faults of payloads. The driver reads
    those of all buckets in one copy from the device and passes them to `decide`, which returns whether every rank's
    part was finite, and the errors. The reply is whether all buckets of the step were finite.
    """

    codes: Sequence[int | Tensor] = ()
    decide: Callable[[list[float]], tuple[bool, list[Exception]]] = lambda codes: (True, [])


def failed(errors: list[Exception]) -> Verdict:
    """The verdict on a bucket whose rounds cannot be completed."""
    return Verdict((), lambda codes: (False, errors))


def read(groups: Sequence[Sequence[int | Tensor]]) -> list[list[float]]:
    """Codes of several programs as numbers; one copy for each device that holds some.

    >>> import torch
    >>> read([[1, torch.tensor([2, 3])], [], [torch.tensor(4)]])
    [[1, 2.0, 3.0], [], [4.0]]
    """
    tensors = [code for codes in groups for code in codes if isinstance(code, Tensor)]
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(tensor.reshape(-1).to(torch.float32))
    numbers = {device: iter(torch.cat(parts).tolist()) for device, parts in by_device.items()}
    return [[number for code in codes for number in _numbers(code, numbers)] for codes in groups]


def _numbers(code: int | Tensor, numbers: dict[torch.device, Iterator[float]]) -> Iterable[float]:
    return islice(numbers[code.device], code.numel()) if isinstance(code, Tensor) else (code,)


Request = Sum | Gather | Spread | Swap | External | Grouped | Idle
