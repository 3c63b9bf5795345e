"""A single process: every collective completes immediately."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .base import Done, Groups, Handle, Transport


class LocalTransport(Transport):
    """A world of one rank."""

    rank = 0
    size = 1

    def nodes(self) -> Groups:
        return ((0,),)

    def allreduce(self, tensor: Tensor, channel: int = 0) -> Handle:
        return Done()

    def allgather(self, out: Tensor, tensor: Tensor, channel: int = 0) -> Handle:
        out.copy_(tensor)
        return Done()

    def alltoall(
        self,
        out: Tensor,
        tensor: Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        channel: int = 0,
    ) -> Handle:
        out.copy_(tensor)
        return Done()

    def broadcast(self, tensor: Tensor, root: int, channel: int = 0) -> Handle:
        return Done()

    def barrier(self, channel: int = 0) -> Handle:
        return Done()

    def agree(self, text: str) -> None:
        pass
