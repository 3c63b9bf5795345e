"""`torch.distributed`: any backend that supports the tensors' device (Gloo, NCCL, ...)."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import time
import weakref
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from ..errors import LayoutError, PeerError
from .agreement import StoreAgreement
from .base import Groups, Handle, Transport
from .channels import Channel, Lease, pool_of
from .device_watch import DeviceWatch
from .interpreter_exit import wait_for_threads_at_exit

# Renamed in newer releases, which warn about the old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class TorchHandle(Handle):
    """`watch`: of collectives that run on a device."""

    def __init__(self, work: Any, what: str, lease: Lease, watch: DeviceWatch | None) -> None:
        self.what = what
        self.issued = time.monotonic()
        self.step = 0 if watch is None else watch.step
        self._work = work
        self._lease: Lease | None = lease
        self._watch = watch
        lease.flying += 1

    def wait(self) -> None:
        self.wait_on_device()
        if self._watch is not None:
            self._watch.complete()

    def wait_on_device(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise PeerError(
                f"{self.what} did not finish: {error}. Another rank died, failed or is stuck; look at its log. "
                "(The time limit is that of the process group: init_process_group(timeout=...).)"
            ) from error
        if self._lease is not None:
            self._lease.flying -= 1
            self._lease = None
            if self._watch is not None:
                self._watch.add(self)

    def done(self) -> bool:
        return bool(self._work.is_completed())


class TorchTransport(Transport):
    """Collectives of a process group, on channels that no other transport uses meanwhile.

    On Gloo a channel is a process group. Other backends run collectives on a device, where two groups in different
    order on two ranks can deadlock; there every channel is the user's own group, and `one_order` is set.
    """

    def __init__(self, group: Any = None, watch: DeviceWatch | None = None) -> None:
        """`watch`: that of the transport whose ranks this is a part of."""
        world: Any = dist.group.WORLD
        found = world if group is None else group
        self.rank = dist.get_rank(found)
        self.size = dist.get_world_size(found)
        if self.rank < 0:
            raise LayoutError(
                "this process is not a member of the process group it was given; "
                "call it only on the group's own ranks."
            )
        self._main = Channel(found)
        self._lease = Lease(pool_of(found))
        self._agreement: StoreAgreement | None = None
        self._watch = watch or DeviceWatch(self.rank, functools.partial(_timeout, self._main))
        self._shared = watch is not None
        self.one_order = any(part.partition(":")[2] != "gloo" for part in _backends(found))
        weakref.finalize(self, self._lease.release).atexit = False
        wait_for_threads_at_exit()

    def open(self, channels: int, text: str) -> None:
        if self.size == 1:
            return
        # One rank is enough to make `new_group` hang, so ranks agree on `text` first.
        wanted = 0 if self.one_order else max(0, channels - len(self._lease))
        pool = pool_of(self._main.group())
        offered = pool.offer(wanted) if self.rank == 0 else []
        for identifier in self._reach(text, offered, pool.has):
            self._lease.take(identifier)
            wanted -= 1
        if wanted:
            self._make(wanted)

    def _make(self, count: int) -> None:
        group = self._main.group()
        whole = group is dist.group.WORLD
        if not whole:
            # Names of subgroups are derived from this number.
            self._reach(f"{len(c10d._world.pg_names)} process groups, of which ranks need equally many")
        for _ in range(count):
            number = len(self._lease)
            made = self._new_group(dist.get_process_group_ranks(group), f"channel {number}", local=not whole)
            self._lease.add(f"{self._label}.{number}", Channel(made))

    def _new_group(self, ranks: list[int], purpose: str, local: bool) -> Any:
        """`local`: only the ranks of the new group call this, not all ranks of the job."""
        try:
            return dist.new_group(
                ranks,
                timeout=self._timeout(),
                use_local_synchronization=local,
                group_desc=f"grace {purpose}",
            )
        except RuntimeError as error:
            raise PeerError(
                f"ranks could not connect: {error}. Another rank has probably ended; look at its log."
            ) from error

    def close(self) -> None:
        super().close()
        self._lease.release()
        if not self._shared:
            self._watch.close()

    def begin_step(self) -> None:
        self._watch.begin_step()

    def leave_step(self, why: str) -> None:
        if self.one_order:  # elsewhere nobody looks for the note
            self._watch.leave(why)

    def complete(self) -> None:
        self._watch.complete()

    @property
    def blocked(self) -> bool:
        return bool(self._watch.failure)

    def nodes(self) -> Groups | None:
        """By `LOCAL_WORLD_SIZE`, which torchrun sets: ranks of the job are numbered node by node."""
        text = os.environ.get("LOCAL_WORLD_SIZE", "")
        if not text.isdigit() or int(text) < 1:
            return None
        nodes: dict[int, list[int]] = {}
        for rank, of_job in enumerate(dist.get_process_group_ranks(self._main.group())):
            nodes.setdefault(of_job // int(text), []).append(rank)
        return tuple(map(tuple, nodes.values()))

    def split(self, groups: Groups) -> Transport:
        # Process groups are never destroyed (see `channels`), so they are made once for each division.
        group = self._main.group()
        made = pool_of(group).splits
        if groups not in made:
            of_job = dist.get_process_group_ranks(group)
            if group is dist.group.WORLD:
                found = [self._new_group([*each], "group", local=False) for each in groups]
                mine = next(one for one, each in zip(found, groups) if self.rank in each)
            else:
                self._reach(f"{len(c10d._world.pg_names)} process groups, of which ranks need equally many")
                own = next(each for each in groups if self.rank in each)
                mine = self._new_group([of_job[rank] for rank in own], "group", local=True)
            made[groups] = Channel(mine)
        return TorchTransport(made[groups].group(), self._watch)

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

    def _group(self, channel: int) -> Any:
        channels = self._lease.channels
        return (channels[channel] if channel < len(channels) else self._main).group()

    def _start(self, what: str, verb: Any, channel: int, *arguments: Any) -> Handle:
        group = self._group(channel)
        try:
            work = verb(*arguments, group=group, async_op=True)
        except RuntimeError as error:
            raise PeerError(
                f"{what} could not start: {error}. Another rank has probably ended; look at its log."
            ) from error
        return TorchHandle(work, what, self._lease, self._watch if _on_device(arguments) else None)

    def agree(self, text: str) -> None:
        """Uses the store, not a collective: ranks that disagree could not complete one."""
        if self.size > 1:
            self._reach(text)

    def _reach(self, text: str, offered: Sequence[str] = (), accepts: Any = bool) -> list[str]:
        if self._agreement is not None:
            return self._agreement.reach(text, self._timeout(), offered, accepts)
        store = _JobStore(self._main)
        # Transports are opened in the same order on the ranks of a group, so a count per rank identifies them.
        base = f"grace/{self._main.group().group_name}"
        count = f"{base}/count/{self.rank}"
        self._label = f"{base}/{store.add(count, 1)}"
        agreement = StoreAgreement(store, self._label, self.rank, self.size)
        if not self._shared:
            self._watch.connect(store, self._label)
        try:
            accepted = agreement.reach(text, self._timeout(), offered, accepts)
        except PeerError:
            with contextlib.suppress(RuntimeError):
                store.add(count, -1)  # ranks that did not come have not counted
            raise
        self._agreement = agreement
        return accepted

    def _timeout(self) -> datetime.timedelta:
        return _timeout(self._main)


class _JobStore:
    """The store of the job, while a process group exists.

    It is the connection that torch has: for another one torch looks up host names, which takes seconds where many ranks
    do so at once. It is not kept, because rank 0 may serve the store, and must stop with `destroy_process_group`.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        self._channel.group()
        return getattr(c10d._get_default_store(), name)


def _timeout(channel: Channel) -> datetime.timedelta:
    group = channel.group()
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        if options is not None:
            found: datetime.timedelta = options._timeout
            return found
    return c10d.default_pg_timeout


def _on_device(arguments: Sequence[Any]) -> bool:
    """Whether a collective with these arguments runs on a device."""
    return any(isinstance(argument, Tensor) and not argument.is_cpu for argument in arguments)


def carried(tensor: Tensor, group: Any = None) -> Tensor:
    """`tensor`, or a copy on a device that the group's backends serve: NCCL does not send CPU tensors."""
    found: Any = dist.group.WORLD if group is None else group
    served = [device.type for device in found._device_types]
    if tensor.device.type in served:
        return tensor.contiguous()
    return tensor.to(served[0]).contiguous()


def _backends(group: Any) -> list[str]:
    """The backends of a group, each with its device: `cpu:gloo`, `cuda:nccl`."""
    return str(dist.get_backend_config(group)).split(",")
