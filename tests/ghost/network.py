"""A network for the pretended device: receive buffers hold garbage until `wait`, and `done` answers at random.

That is what programs may rely on with NCCL: a buffer belongs to the network until `wait`, whether a collective is
complete differs between ranks, and all ranks must issue all collectives in one order, whatever their channel. Waiting
does not block the host, which must not wait for the device in another way before it knows that collectives are complete.
"""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Store

from contract.wire import Wrapped
from ghost.device import busy, down, unseen
from grace_dl.transport.base import Handle, Transport
from grace_dl.transport.device_watch import DeviceWatch


class _Late(Handle):
    """A collective whose results reach the buffers at `wait`."""

    def __init__(self, inner: Handle, network: Network, what: str, arrive: Callable[[], object]) -> None:
        self.what = what
        self.issued = time.monotonic()
        self.step = network.watch.step
        self._inner = inner
        self._network = network
        self._arrive: Callable[[], object] | None = arrive

    def wait(self) -> None:
        self.wait_on_device()
        self._network.complete()

    def wait_on_device(self) -> None:
        arrive, self._arrive = self._arrive, None
        if arrive is not None:
            self._network.watch.add(self)
            busy(True)
        if arrive is not None and not self._network.stuck:
            self._inner.wait()
            with unseen(), torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
                arrive()

    def done(self) -> bool:
        return self._network.toss.random() < 0.5 and self._inner.done()


class Network(Wrapped):
    """One rank: `inner` moves copies of the data."""

    def __init__(self, inner: Transport, store: Store, seed: int = 0) -> None:
        super().__init__(inner)
        self.toss = random.Random(f"{seed} {inner.rank}")
        self.issued: list[tuple[Any, ...]] = []
        """Every collective, in the order it was issued."""
        self.stuck = False
        """Whether collectives are never complete."""
        self.fails_at: int | None = None
        """How many collectives can be issued before one cannot."""
        self.timeout = datetime.timedelta(seconds=60)
        self.watch = DeviceWatch(inner.rank, lambda: self.timeout)
        self.watch.connect(store, "ghost")

    def begin_step(self) -> None:
        self.watch.begin_step()
        busy(False)

    def leave_step(self, why: str) -> None:
        self.watch.leave(why)

    def complete(self) -> None:
        self.watch.complete()
        busy(False)

    @property
    def blocked(self) -> bool:
        return bool(self.watch.failure)

    def allreduce(self, tensor: Tensor, channel: int = 0) -> Handle:
        buffer = self._note("allreduce", channel, tensor)
        total = buffer.clone()
        handle = self.inner.allreduce(total, channel)
        _spoil(buffer)
        return _Late(handle, self, "all-reduce", lambda: buffer.copy_(total))

    def allgather(self, out: Tensor, tensor: Tensor, channel: int = 0) -> Handle:
        sent = self._note("allgather", channel, tensor)
        copy, arrived, receive = sent.clone(), torch.empty_like(down(out)), down(out)
        handle = self.inner.allgather(arrived, copy, channel)
        _spoil(receive)
        return _Late(handle, self, "all-gather", lambda: _deliver(receive, arrived, sent, copy))

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
        return _Late(handle, self, "all-to-all", lambda: _deliver(receive, arrived, sent, copy))

    def broadcast(self, tensor: Tensor, root: int, channel: int = 0) -> Handle:
        buffer = self._note("broadcast", channel, tensor, root)
        arrived = buffer.clone()
        handle = self.inner.broadcast(arrived, root, channel)
        if root != self.rank:
            _spoil(buffer)
        return _Late(handle, self, "broadcast", lambda: buffer.copy_(arrived))

    def agree(self, text: str) -> None:
        with unseen():
            super().agree(text)

    def _note(self, verb: str, channel: int, tensor: Tensor, *more: Any) -> Tensor:
        assert tensor.is_cuda, f"{verb} was given a tensor on {tensor.device}"
        if len(self.issued) == self.fails_at:
            raise RuntimeError("out of memory")
        self.issued.append((verb, channel, tensor.numel(), str(tensor.dtype), *more))
        return down(tensor)


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
