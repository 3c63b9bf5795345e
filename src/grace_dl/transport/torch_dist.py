"""`torch.distributed`: any backend that supports the tensors' device (Gloo, NCCL, ...)."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from ..errors import LayoutError, PeerError
from .base import Handle, Transport, disagreement

# Renamed in newer releases, which warn about the old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


resolve_group: Any = c10d._resolve_process_group
"""The process group of a name; raises where it was destroyed."""


_idle: dict[str, list[str]] = {}
"""Channels that closed transports have left, by the process group they belong to; in the same order on every rank."""


class TorchHandle(Handle):
    def __init__(self, work: Any, what: str) -> None:
        self._work = work
        self._what = what

    def wait(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise PeerError(
                f"{self._what} did not finish: {error}. Another rank died, failed or is stuck; look at its log. "
                "(The time limit is that of the process group: init_process_group(timeout=...).)"
            ) from error

    def done(self) -> bool:
        return bool(self._work.is_completed())


class TorchTransport(Transport):
    """Collectives of a process group; each further channel is a new group with the same ranks.

    It stores names of groups, not groups: a reference that outlives `destroy_process_group` makes Gloo abort at exit.
    """

    def __init__(self, group: Any = None) -> None:
        world: Any = dist.group.WORLD
        found = world if group is None else group
        self.rank = dist.get_rank(found)
        self.size = dist.get_world_size(found)
        if self.rank < 0:
            raise LayoutError(
                "this process is not a member of the process group it was given; "
                "call it only on the group's own ranks."
            )
        self._names: list[str] = [found.group_name]
        self._agreements = 0
        # Objects are created in the same order on the ranks of a group, so a count per rank identifies them.
        label = f"grace/{found.group_name}"
        self._label = f"{label}/{self._store().add(f'{label}/count/{self.rank}', 1)}"

    def open(self, channels: int) -> None:
        idle = _idle.setdefault(self._names[0], [])
        while len(self._names) < channels:
            self._names.append(self._reused(idle) or self._made())

    @staticmethod
    def _reused(idle: list[str]) -> str | None:
        while idle:
            name = idle.pop()
            try:
                resolve_group(name)
            except (RuntimeError, ValueError):  # of a process group that was destroyed meanwhile
                continue
            return name
        return None

    def _made(self) -> str:
        made = dist.new_group(
            dist.get_process_group_ranks(self._group()),
            timeout=self._timeout(),
            use_local_synchronization=True,
            group_desc=f"grace channel {len(self._names)}",
        )
        return str(made.group_name)

    def close(self) -> None:
        # Not destroyed: a group made later would get its name, and find addresses of the old one in the store.
        _idle.setdefault(self._names[0], []).extend(reversed(self._names[1:]))
        del self._names[1:]

    def _group(self, channel: int = 0) -> Any:
        try:
            return resolve_group(self._names[channel])
        except (RuntimeError, ValueError) as error:
            raise PeerError(
                f"the process group {self._names[channel]!r} has been destroyed; attach after init_process_group() and "
                "train before destroy_process_group()."
            ) from error

    def allreduce(self, tensor: Tensor, channel: int = 0) -> Handle:
        return self._start("all-reduce", dist.all_reduce, channel, tensor)

    def allgather(self, out: Tensor, tensor: Tensor, channel: int = 0) -> Handle:
        return self._start("all-gather", _all_gather, channel, out, tensor)

    def alltoall(
        self,
        out: Tensor,
        tensor: Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        channel: int = 0,
    ) -> Handle:
        splits = (list(out_splits), list(in_splits))
        return self._start("all-to-all", dist.all_to_all_single, channel, out, tensor, *splits)

    def broadcast(self, tensor: Tensor, root: int, channel: int = 0) -> Handle:
        source = dist.get_global_rank(self._group(channel), root)
        return self._start("broadcast", dist.broadcast, channel, tensor, source)

    def barrier(self, channel: int = 0) -> Handle:
        return self._start("barrier", dist.barrier, channel)

    def _start(self, what: str, verb: Any, channel: int, *arguments: Any) -> Handle:
        group = self._group(channel)
        try:
            work = verb(*arguments, group=group, async_op=True)
        except RuntimeError as error:
            raise PeerError(
                f"{what} could not start: {error}. Another rank has probably ended; look at its log."
            ) from error
        return TorchHandle(work, what)

    def agree(self, text: str) -> None:
        """Uses the store, not a collective: ranks that disagree could not complete one."""
        if self.size == 1:
            return
        store, timeout = self._store(), self._timeout()
        self._agreements += 1
        place = f"{self._label}/{self._agreements}"
        store.set(f"{place}/{self.rank}", text)
        for rank in range(self.size):
            if rank == self.rank:
                continue
            key = f"{place}/{rank}"
            try:
                store.wait([key], timeout)
                theirs = store.get(key).decode()
            except RuntimeError as error:
                raise PeerError(
                    f"rank {rank} did not come to exchange {self._agreements} in {timeout.total_seconds():g} s, where rank "
                    f"{self.rank} brings: {text}\nIt has ended, is stuck, or has other buckets; look at its log."
                ) from error
            if theirs != text:
                raise LayoutError(disagreement(self.rank, text, rank, theirs))

    def _store(self) -> Any:
        return c10d._get_default_store()

    def _timeout(self) -> datetime.timedelta:
        group = self._group()
        for device in group._device_types:
            options = getattr(group._get_backend(device), "options", None)
            if options is not None:
                return options._timeout
        return c10d.default_pg_timeout
