"""The base class of transports that pass their collectives on to another one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .base import Handle, Transport


class Forwarding(Transport):
    """Passes every collective on to `inner`. A subclass sets `_inner`, `rank` and `size`, and overrides what differs.

    Groups of ranks are not passed on: a subclass would not see their collectives.
    """

    _inner: Transport | None = None

    @property
    def inner(self) -> Transport:
        """The transport that does the work."""
        assert self._inner is not None, f"{type(self).__name__} is opened before it is used"
        return self._inner

    def open(self, channels: int, text: str) -> None:
        self.inner.open(channels, text)

    def close(self) -> None:
        super().close()
        if self._inner is not None:
            self._inner.close()

    def begin_step(self) -> None:
        self.inner.begin_step()

    def leave_step(self, why: str) -> None:
        self.inner.leave_step(why)

    def complete(self) -> None:
        self.inner.complete()

    @property
    def blocked(self) -> bool:
        return self._inner is not None and self._inner.blocked

    def allreduce(self, tensor: Tensor, channel: int = 0) -> Handle:
        return self.inner.allreduce(tensor, channel)

    def allgather(self, out: Tensor, tensor: Tensor, channel: int = 0) -> Handle:
        return self.inner.allgather(out, tensor, channel)

    def alltoall(
        self,
        out: Tensor,
        tensor: Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        channel: int = 0,
    ) -> Handle:
        return self.inner.alltoall(out, tensor, out_splits, in_splits, channel)

    def broadcast(self, tensor: Tensor, root: int, channel: int = 0) -> Handle:
        return self.inner.broadcast(tensor, root, channel)

    def barrier(self, channel: int = 0) -> Handle:
        return self.inner.barrier(channel)

    def agree(self, text: str) -> None:
        self.inner.agree(text)
