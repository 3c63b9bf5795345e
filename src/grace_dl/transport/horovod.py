"""Horovod: its asynchronous PyTorch operations, on any process set; also for TensorFlow programs.

Horovod matches operations by name, in any order, and caches how a name was negotiated. Names consist of channel,
operation, dtype, size and a small count; they repeat at every step, and no two operations in flight share a name.
Horovod waits forever for a missing rank; here that ends after `timeout`.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import horovod.torch as hvd
import torch
from horovod.torch import mpi_ops
from torch import Tensor

from ..errors import ConfigError, LayoutError, PeerError
from .base import Done, Handle, Transport, disagreement

TIMEOUT = 1800.0
"""Default timeout of a collective in seconds (`GRACE_TIMEOUT` overrides it); the same as in torch.distributed."""

_ROTATION = 4
_SUMMED = (torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)


class _Session:
    """Number of transports created per process set since Horovod was last initialised."""

    def __init__(self) -> None:
        self._table: Any = None
        self._made: dict[int, itertools.count[int]] = {}

    def next(self, set_id: int) -> int:
        # Horovod creates a new table whenever it is initialised, as elastic training does.
        if self._table is not mpi_ops._handle_map:
            self._table = mpi_ops._handle_map
            self._made.clear()
        return next(self._made.setdefault(set_id, itertools.count()))


_session = _Session()


class HorovodPeerError(PeerError, mpi_ops.HorovodInternalError):  # type: ignore[misc]
    """A failed collective; Horovod's elastic mode treats it as its own error and recovers."""


class HorovodHandle(Handle):
    """An operation in progress, and the postprocessing of its result."""

    def __init__(
        self, number: int, what: str, timeout: float, then: Callable[[], Handle | None] | None = None
    ) -> None:
        self._number: int | None = number
        self._what = what
        self._timeout = timeout
        self._then = then
        self._next: Handle | None = None
        self._error: PeerError | None = None

    def wait(self) -> None:
        if self._number is not None:
            deadline = time.monotonic() + self._timeout
            pause = 2e-5
            while not self._over():
                if time.monotonic() > deadline:
                    raise self._failure(f"not all ranks came within {self._timeout:g} s")
                time.sleep(pause)
                pause = min(2 * pause, 1e-3)
            self._settle()
        if self._error is not None:
            raise self._error
        if self._next is not None:
            self._next.wait()

    def done(self) -> bool:
        if self._number is not None:
            if not self._over():
                return False
            self._settle()
        return self._error is not None or self._next is None or self._next.done()

    def _over(self) -> bool:
        try:
            return bool(hvd.poll(self._number))
        except (RuntimeError, ValueError) as error:  # Horovod was shut down meanwhile
            self._error = self._failure(str(error))
            self._number = None
            return True

    def _settle(self) -> None:
        if self._number is None:
            return
        number, self._number = self._number, None
        try:
            hvd.synchronize(number)
        except (RuntimeError, ValueError) as error:
            self._error = self._failure(str(error))
            return
        if self._then is not None:
            self._next = self._then()

    def _failure(self, why: str) -> PeerError:
        return HorovodPeerError(
            f"{self._what} did not finish: {why}. Another rank died, failed or is stuck; look at its log. "
            "(The time limit is GRACE_TIMEOUT seconds.)"
        )


class HorovodTransport(Transport):
    """Collectives of a Horovod process set (by default of all ranks)."""

    renewable = True

    def __init__(self, process_set: Any = None, timeout: float | None = None) -> None:
        if not hvd.is_initialized():
            raise ConfigError("Horovod is not initialised in this process; call hvd.init() first.")
        self.process_set = hvd.global_process_set if process_set is None else process_set
        set_id = self.process_set.process_set_id
        if set_id is None or not self.process_set.ranks:
            raise ConfigError(
                f"{self.process_set} is not registered; give it to hvd.init(process_sets=...) or hvd.add_process_set()."
            )
        if hvd.rank() not in self.process_set.ranks:
            raise LayoutError(
                f"rank {hvd.rank()} is not a member of {self.process_set}; call it only on the set's own ranks."
            )
        # Not taken from the set itself, which may belong to TensorFlow's Horovod, which numbers sets separately.
        self.rank = self.process_set.ranks.index(hvd.rank())
        self.size = len(self.process_set.ranks)
        self.timeout = float(os.environ.get("GRACE_TIMEOUT", TIMEOUT)) if timeout is None else timeout
        self._table = mpi_ops._handle_map
        # Objects are created in the same order on the ranks of a set, so a count per set identifies them.
        self._label = f"grace.{set_id}.{_session.next(set_id)}"
        self._agreements = 0
        self._counts: dict[str, int] = {}
        self._flying: dict[str, HorovodHandle] = {}

    @property
    def stale(self) -> bool:  # type: ignore[override]
        return self._table is not mpi_ops._handle_map

    def renew(self) -> HorovodTransport:
        return HorovodTransport(self.process_set, self.timeout)

    def allreduce(self, tensor: Tensor, channel: int = 0) -> Handle:
        if self.size == 1 or tensor.numel() == 0:
            return Done()
        if tensor.dtype in _SUMMED and tensor.is_contiguous():
            name = self._name("sum", tensor.dtype, tensor.numel(), channel)
            return self._start(name, "all-reduce", lambda: mpi_ops.allreduce_async_(
                tensor, name=name, op=hvd.Sum, process_set=self.process_set
            ))  # fmt: skip
        return self._sum_by_slices(tensor, channel)

    def _sum_by_slices(self, tensor: Tensor, channel: int) -> Handle:
        """Sum dtypes that Horovod cannot add, sent as bytes, with no more traffic than a ring all-reduce.

        Every rank receives its slice from all ranks, adds in rank order (bfloat16 in float32), rounds once and gathers.
        """
        wide = torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype
        slot = -(-tensor.numel() // self.size)
        sent = torch.zeros(self.size * slot, dtype=tensor.dtype, device=tensor.device)
        sent[: tensor.numel()] = tensor.reshape(-1)
        came = torch.empty_like(sent)
        # Named now: ranks reach this point in the same order, but not the end of the first half.
        name = self._name("sumgather", tensor.dtype, slot, channel)

        def gather() -> Handle:
            total = came[:slot].to(wide)
            for part in came.split(slot)[1:]:
                total += part.to(wide)
            return self._gather(sent, total.to(tensor.dtype), name, store)

        def store() -> None:
            tensor.copy_(sent[: tensor.numel()].view(tensor.shape))

        splits = [slot] * self.size
        return self._alltoall(came, sent, splits, splits, channel, gather)

    def allgather(self, out: Tensor, tensor: Tensor, channel: int = 0) -> Handle:
        name = self._name("gather", tensor.dtype, tensor.numel(), channel)
        return self._gather(out, tensor, name)

    def _gather(
        self, out: Tensor, tensor: Tensor, name: str, then: Callable[[], Handle | None] | None = None
    ) -> Handle:
        mine, everyone = _bytes(tensor), _bytes(out)
        if self.size == 1 or mine.numel() == 0:
            everyone.copy_(mine)
            return (then() if then is not None else None) or Done()
        start = lambda: mpi_ops._allgather_async(mine, everyone, name, self.process_set)  # noqa: E731
        return self._start(name, "all-gather", start, then)

    def alltoall(
        self,
        out: Tensor,
        tensor: Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        channel: int = 0,
    ) -> Handle:
        return self._alltoall(out, tensor, out_splits, in_splits, channel)

    def _alltoall(
        self,
        out: Tensor,
        tensor: Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        channel: int,
        then: Callable[[], Handle | None] | None = None,
    ) -> Handle:
        # Sizes differ between ranks here, so they cannot be part of the name.
        name = self._name("swap", tensor.dtype, 0, channel)
        if self.size == 1:
            out.copy_(tensor)
            return (then() if then is not None else None) or Done()
        item = tensor.element_size()
        # Splits are 32-bit counts in Horovod: use units of 8 bytes if all sizes are multiples of that.
        unit = 8 if all(item * n % 8 == 0 for n in (*out_splits, *in_splits)) else 1
        kind = torch.int64 if unit == 8 and _aligned(out) and _aligned(tensor) else torch.uint8
        splits = torch.tensor([n * item // kind.itemsize for n in in_splits], dtype=torch.int32)
        received = torch.empty(self.size, dtype=torch.int32)
        mine, everyone = _bytes(tensor).view(kind), _bytes(out).view(kind)
        return self._start(name, "all-to-all", lambda: mpi_ops._alltoall_async(
            mine, splits, everyone, received, name, self.process_set
        ), then)  # fmt: skip

    def broadcast(self, tensor: Tensor, root: int, channel: int = 0) -> Handle:
        name = self._name(f"from{root}", tensor.dtype, tensor.numel(), channel)
        if self.size == 1 or tensor.numel() == 0:
            return Done()
        source = self.process_set.ranks[root]
        return self._start(name, "broadcast", lambda: mpi_ops.broadcast_async_(
            _bytes(tensor), source, name=name, process_set=self.process_set
        ))  # fmt: skip

    def barrier(self, channel: int = 0) -> Handle:
        return self.allreduce(torch.zeros(1, dtype=torch.int32), channel)

    def agree(self, text: str) -> None:
        """Uses an all-gather of the texts, which may have different lengths in Horovod."""
        if self.size == 1:
            return
        self._agreements += 1
        mine = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        length = torch.tensor([mine.numel()], dtype=torch.int64)
        lengths, texts = torch.empty(self.size, dtype=torch.int64), torch.empty(0, dtype=torch.uint8)
        for kind, out, tensor in (("lengths", lengths, length), ("texts", texts, mine)):
            name = f"{self._label}.agree.{self._agreements}.{kind}"
            start = lambda t=tensor, o=out, n=name: mpi_ops._allgather_async(t, o, n, self.process_set)  # noqa: E731
            self._start(name, "the comparison of layouts", start).wait()
        self._agreements += 1
        for rank, theirs in enumerate(texts.split(lengths.tolist())):
            other = bytes(theirs.tolist()).decode(errors="replace")
            if other != text:
                raise LayoutError(disagreement(self.rank, text, rank, other))

    def _name(self, verb: str, dtype: torch.dtype, numel: int, channel: int) -> str:
        base = f"{self._label}.{channel}.{verb}.{str(dtype).removeprefix('torch.')}.{numel}"
        count = self._counts.get(base, 0)
        self._counts[base] = count + 1
        return f"{base}.{count % _ROTATION}"

    def _start(
        self, name: str, what: str, verb: Callable[[], int], then: Callable[[], Handle | None] | None = None
    ) -> Handle:
        before = self._flying.pop(name, None)
        if before is not None and not before.done():
            before.wait()
        try:
            number = verb()
        except (RuntimeError, ValueError) as error:
            raise HorovodPeerError(
                f"{what} could not start: {error}. Horovod was shut down, or another rank has ended; look at its log."
            ) from error
        handle = HorovodHandle(number, what, self.timeout, then)
        self._flying[name] = handle
        return handle


def _bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor as bytes, so that Horovod can send dtypes that it does not support."""
    return tensor.view(-1).view(torch.uint8)


def _aligned(tensor: Tensor) -> bool:
    return tensor.storage_offset() * tensor.element_size() % 8 == 0
