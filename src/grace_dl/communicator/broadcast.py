"""Every rank's payload is broadcast, one root at a time."""

from __future__ import annotations

from torch import Tensor

from ..pipeline.request import Request, Spread
from .allgather import Allgather


class Broadcast(Allgather):
    """Like `Allgather`, with one broadcast per rank: for engines whose all-gather is slow."""

    name = "broadcast"

    def _meet(self, receive: Tensor, send: Tensor, read: bool = False) -> Request:
        rank, size = self.transport.rank, self.transport.size
        parts = receive.split(receive.numel() // size)
        parts[rank].copy_(send)
        return Spread(parts, rank, read)
