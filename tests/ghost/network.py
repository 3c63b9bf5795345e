"""A network for the pretended device: receive buffers hold garbage until `wait`, and `done` answers at random.

That is what programs may rely on with NCCL: a buffer belongs to the network until `wait`, whether a collective is
complete differs between ranks, and all ranks must issue all collectives in one order, whatever their channel.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from contract.wire import Wrapped
from ghost.device import down, unseen
from grace_dl.transport.base import Handle, Transport


class _Late(Handle):
    """A collective whose results reach the buffers at `wait`."""

    def __init__(self, inner: Handle, toss: random.Random, arrive: Callable[[], object]) -> None:
        self._inner = inner
        self._toss = toss
        self._arrive: Callable[[], object] | None = arrive

    def wait(self) -> None:
        self._inner.wait()
        arrive, self._arrive = self._arrive, None
        if arrive is not None:
            with unseen(), torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
                arrive()

    def done(self) -> bool:
        return self._toss.random() < 0.5 and self._inner.done()


class Network(Wrapped):
    """One rank: `inner` moves copies of the data."""

    def __init__(self, inner: Transport, seed: int = 0) -> None:
        super().__init__(inner)
        self._toss = random.Random(f"{seed} {inner.rank}")
        self.issued: list[tuple[Any, ...]] = []
        """Every collective, in the order it was issued."""

    def allreduce(self, tensor: Tensor, channel: int = 0) -> Handle:
        buffer = self._note("allreduce", channel, tensor)
        total = buffer.clone()
        handle = self.inner.allreduce(total, channel)
        _spoil(buffer)
        return self._late(handle, lambda: buffer.copy_(total))

    def allgather(self, out: Tensor, tensor: Tensor, channel: int = 0) -> Handle:
        sent = self._note("allgather", channel, tensor)
        copy, arrived, receive = sent.clone(), torch.empty_like(down(out)), down(out)
        handle = self.inner.allgather(arrived, copy, channel)
        _spoil(receive)
        return self._late(handle, lambda: _deliver(receive, arrived, sent, copy))

    def alltoall(
        self,
        out: Tensor,
        tensor: Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        channel: int = 0,
    ) -> Handle:
        sent = self._note("alltoall", channel, tensor)
        copy, arrived, receive = sent.clone(), torch.empty_like(down(out)), down(out)
        handle = self.inner.alltoall(arrived, copy, out_splits, in_splits, channel)
        _spoil(receive)
        return self._late(handle, lambda: _deliver(receive, arrived, sent, copy))

    def broadcast(self, tensor: Tensor, root: int, channel: int = 0) -> Handle:
        buffer = self._note("broadcast", channel, tensor, root)
        arrived = buffer.clone()
        handle = self.inner.broadcast(arrived, root, channel)
        if root != self.rank:
            _spoil(buffer)
        return self._late(handle, lambda: buffer.copy_(arrived))

    def agree(self, text: str) -> None:
        with unseen():
            super().agree(text)

    def _note(self, verb: str, channel: int, tensor: Tensor, *more: Any) -> Tensor:
        assert tensor.is_cuda, f"{verb} was given a tensor on {tensor.device}"
        self.issued.append((verb, channel, tensor.numel(), str(tensor.dtype), *more))
        return down(tensor)

    def _late(self, handle: Handle, arrive: Callable[[], object]) -> Handle:
        return _Late(handle, self._toss, arrive)


def _spoil(buffer: Tensor) -> None:
    """Every byte set: NaN as a float, -1 as an integer, no valid flag."""
    with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
        buffer.view(torch.uint8).fill_(0xFF)


def _deliver(receive: Tensor, arrived: Tensor, sent: Tensor, copy: Tensor) -> None:
    same = torch.equal(sent.view(torch.uint8), copy.view(torch.uint8))
    assert same, "a send buffer was written before its collective was waited for"
    receive.copy_(arrived)


def one_order(networks: Sequence[Network]) -> None:
    """All ranks issued the same collectives in the same order."""
    for network in networks[1:]:
        assert network.issued == networks[0].issued, (
            f"rank {network.rank} and rank 0 issued collectives in different order:\n"
            f"{network.issued}\n{networks[0].issued}"
        )
