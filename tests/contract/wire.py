"""Transports that look at, or change, what crosses them; they wrap another and count on their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from grace_dl.transport.base import Handle, Transport
from grace_dl.transport.forwarding import Forwarding


class Wrapped(Forwarding):
    """Hands everything on."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.rank = inner.rank
        self.size = inner.size


class Counting(Wrapped):
    """Counts the bytes that are handed to collectives, and those that have to leave this rank."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.handed = 0
        self.leaving = 0.0
        self.calls: list[str] = []

    def allreduce(self, tensor: Tensor, channel: int = 0) -> Handle:
        self.calls.append("allreduce")
        self.handed += _bytes(tensor)
        self.leaving += 2 * _bytes(tensor) * (self.size - 1) / self.size
        return super().allreduce(tensor, channel)

    def allgather(self, out: Tensor, tensor: Tensor, channel: int = 0) -> Handle:
        self.calls.append("allgather")
        self.handed += _bytes(tensor)
        self.leaving += _bytes(tensor) * (self.size - 1)
        return super().allgather(out, tensor, channel)

    def alltoall(
        self,
        out: Tensor,
        tensor: Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        channel: int = 0,
    ) -> Handle:
        self.calls.append("alltoall")
        others = sum(count for rank, count in enumerate(in_splits) if rank != self.rank)
        self.handed += _bytes(tensor)
        self.leaving += others * tensor.element_size()
        return super().alltoall(out, tensor, out_splits, in_splits, channel)

    def broadcast(self, tensor: Tensor, root: int, channel: int = 0) -> Handle:
        self.calls.append("broadcast")
        if root == self.rank:
            self.handed += _bytes(tensor)
            self.leaving += _bytes(tensor) * (self.size - 1)
        return super().broadcast(tensor, root, channel)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class Damaged(Handle):
    """Waits, and then damages what arrived."""

    def __init__(self, inner: Handle, damage: Callable[[], None]) -> None:
        self._inner = inner
        self._damage: Callable[[], None] | None = damage

    def wait(self) -> None:
        self._inner.wait()
        if self._damage is not None:
            self._damage()
            self._damage = None

    def done(self) -> bool:
        return self._inner.done()


class Damaging(Wrapped):
    """Lets `damage(verb, call, received, own)` change what arrives; `call` counts the collectives."""

    def __init__(self, inner: Transport, damage: Callable[..., Any]) -> None:
        super().__init__(inner)
        self._damage = damage
        self._call = -1

    def _then(self, handle: Handle, verb: str, received: Tensor) -> Handle:
        self._call += 1
        call = self._call
        return Damaged(handle, lambda: self._damage(verb, call, received))

    def allreduce(self, tensor: Tensor, channel: int = 0) -> Handle:
        return self._then(super().allreduce(tensor, channel), "allreduce", tensor)

    def allgather(self, out: Tensor, tensor: Tensor, channel: int = 0) -> Handle:
        return self._then(super().allgather(out, tensor, channel), "allgather", out)

    def alltoall(
        self,
        out: Tensor,
        tensor: Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        channel: int = 0,
    ) -> Handle:
        handle = super().alltoall(out, tensor, out_splits, in_splits, channel)
        return self._then(handle, "alltoall", out)

    def broadcast(self, tensor: Tensor, root: int, channel: int = 0) -> Handle:
        return self._then(super().broadcast(tensor, root, channel), "broadcast", tensor)
