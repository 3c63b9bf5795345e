"""W ranks inside one process: for tests, notebooks and convergence studies with many workers on a laptop.

>>> import torch
>>> import grace_dl as grace
>>> world = grace.simulated(4)
>>> handles = [grace.manual("none", transport=t) for t in world]
>>> means = world.run(lambda t: handles[t.rank].step(torch.full((3,), float(t.rank)), "w"))
>>> means[0]
tensor([1.5000, 1.5000, 1.5000])
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import LayoutError, PeerError
from ..settings import whole
from .base import Groups, Handle, Transport

R = TypeVar("R")

_Place = tuple[str, int, int]
"""Where ranks meet: a name of the group, a channel and a turn on it."""


class _Meeting:
    """One collective: the arguments of each rank, and whether it has run."""

    def __init__(self) -> None:
        self.brought: dict[int, tuple[Any, ...]] = {}
        self.over = False
        self.error: Exception | None = None


_MOST_RANKS = 100_000


class World:
    """The ranks of a simulation; iterate over it for their transports."""

    def __init__(self, size: int, timeout: float = 60.0, ranks_per_node: int | None = None) -> None:
        whole("size", size, "ranks of the simulated world, each a thread", least=1, most=_MOST_RANKS)
        self.size = size
        self.ranks_per_node = ranks_per_node
        self.timeout = timeout
        self.changed = threading.Condition()
        self.failed: BaseException | None = None
        self._meetings: dict[_Place, _Meeting] = {}
        self._transports = [SimulatedTransport(self, rank) for rank in range(size)]
        self._parts: list[SimulatedTransport] = []

    def __iter__(self) -> Iterator[SimulatedTransport]:
        return iter(self._transports)

    def __getitem__(self, rank: int) -> SimulatedTransport:
        return self._transports[rank]

    def __len__(self) -> int:
        return self.size

    def run(self, function: Callable[[SimulatedTransport], R]) -> list[R]:
        """Call `function(transport)` on all ranks concurrently; returns results by rank. Raises the first failure."""
        results: list[Any] = [None] * self.size
        errors: dict[int, BaseException] = {}

        def work(transport: SimulatedTransport) -> None:
            try:
                results[transport.rank] = function(transport)
            except BaseException as error:
                with self.changed:
                    errors[transport.rank] = error
                    self.failed = self.failed or error
                    self.changed.notify_all()

        threads = [threading.Thread(target=work, args=(t,), daemon=True) for t in self]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first, self.failed = self.failed, None
        if first is not None:
            self._meetings.clear()
            for transport in (*self, *self._parts):
                transport.reset()
            raise first
        return results

    def add_part(self, part: SimulatedTransport) -> None:
        """Remember the transport of a group of ranks."""
        self._parts.append(part)

    def meeting(self, place: _Place) -> _Meeting:
        return self._meetings.setdefault(place, _Meeting())

    def forget(self, place: _Place) -> None:
        self._meetings.pop(place, None)


class _SimulatedHandle(Handle):
    def __init__(self, world: World, meeting: _Meeting) -> None:
        self._world = world
        self._meeting = meeting

    def wait(self) -> None:
        world, meeting = self._world, self._meeting
        with world.changed:
            came = world.changed.wait_for(lambda: meeting.over or world.failed is not None, world.timeout)
        if meeting.error is not None:
            raise meeting.error
        if not meeting.over:
            reason = (
                f"another rank failed: {world.failed}" if came else f"not all came in {world.timeout:g} s"
            )
            raise PeerError(f"the simulated collective did not finish: {reason}.")

    def done(self) -> bool:
        return self._meeting.over


class SimulatedTransport(Transport):
    """One rank of a simulated world, or of a group of its ranks that has a name."""

    def __init__(self, world: World, rank: int, size: int | None = None, name: str = "") -> None:
        self._world = world
        self.rank = rank
        self.size = world.size if size is None else size
        self._name = name
        self._turn: dict[int, int] = {}
        self._divisions = 0

    def nodes(self) -> Groups | None:
        count = self._world.ranks_per_node
        if count is None:
            return None
        return tuple(
            tuple(range(first, min(first + count, self.size))) for first in range(0, self.size, count)
        )

    def split(self, groups: Groups) -> Transport:
        own = next(group for group in groups if self.rank in group)
        # Ranks divide themselves in the same order, so a count tells divisions apart.
        self._divisions += 1
        name = f"{self._name}/{self._divisions}:{own}"
        part = SimulatedTransport(self._world, own.index(self.rank), len(own), name)
        self._world.add_part(part)
        return part

    def reset(self) -> None:
        self._turn.clear()

    def allreduce(self, tensor: Tensor, channel: int = 0) -> Handle:
        return self._meet(channel, ("allreduce", tensor.numel(), tensor.dtype), (tensor,))

    def allgather(self, out: Tensor, tensor: Tensor, channel: int = 0) -> Handle:
        return self._meet(channel, ("allgather", tensor.numel(), tensor.dtype), (out, tensor))

    def alltoall(
        self,
        out: Tensor,
        tensor: Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        channel: int = 0,
    ) -> Handle:
        buffers = (out.split(list(out_splits)), tensor.split(list(in_splits)))
        return self._meet(channel, ("alltoall",), buffers)

    def broadcast(self, tensor: Tensor, root: int, channel: int = 0) -> Handle:
        return self._meet(channel, ("broadcast", root, tensor.numel()), (tensor,))

    def barrier(self, channel: int = 0) -> Handle:
        return self._meet(channel, ("barrier",), ())

    def _meet(self, channel: int, kind: tuple[Any, ...], buffers: tuple[Any, ...]) -> Handle:
        world = self._world
        turn = self._turn.get(channel, 0)
        self._turn[channel] = turn + 1
        with world.changed:
            place = self._name, channel, turn
            meeting = world.meeting(place)
            meeting.brought[self.rank] = (kind, buffers)
            if len(meeting.brought) == self.size:
                world.forget(place)
                everyone = [meeting.brought[rank] for rank in range(self.size)]
                kinds = [k for k, _ in everyone]
                if any(k != kinds[0] for k in kinds):
                    meeting.error = LayoutError(f"ranks issued different collectives at once: {kinds}.")
                elif kinds[0][0] == "alltoall" and not _fit([b for _, b in everyone]):
                    meeting.error = LayoutError("what a rank sends to another is not what that one expects.")
                else:
                    _carry_out(kinds[0], [b for _, b in everyone])
                meeting.over = True
                world.changed.notify_all()
        return _SimulatedHandle(world, meeting)


def _fit(buffers: list[tuple[Any, ...]]) -> bool:
    """Whether each part of an all-to-all has the length and dtype that its receiver expects."""
    return all(
        out.shape == buffers[source][1][rank].shape and out.dtype == buffers[source][1][rank].dtype
        for rank, (outs, _) in enumerate(buffers)
        for source, out in enumerate(outs)
    )


def _carry_out(kind: tuple[Any, ...], buffers: list[tuple[Any, ...]]) -> None:
    verb = kind[0]
    if verb == "allreduce":
        total = buffers[0][0].clone()
        for (tensor,) in buffers[1:]:
            total += tensor
        for (tensor,) in buffers:
            tensor.copy_(total)
    elif verb == "allgather":
        everything = torch.cat([tensor for _, tensor in buffers])
        for out, _ in buffers:
            out.copy_(everything)
    elif verb == "alltoall":
        for rank, (outs, _) in enumerate(buffers):
            for source, out in enumerate(outs):
                out.copy_(buffers[source][1][rank])
    elif verb == "broadcast":
        for rank, (tensor,) in enumerate(buffers):
            if rank != kind[1]:
                tensor.copy_(buffers[kind[1]][0])


def simulated(size: int, timeout: float = 60.0, *, ranks_per_node: int | None = None) -> World:
    """A world of `size` ranks in this process; `ranks_per_node` consecutive ones are said to be on one node."""
    return World(size, timeout, ranks_per_node)
