"""Channels on `torch.distributed`: process groups with the same ranks, each used by one transport at a time.

The group that the user named is the first channel; more are made when needed and never destroyed, since a group that
is made later would get the name of the destroyed one, and find its addresses in the store. A transport returns its
channels when it is closed or garbage-collected, which happens at different times on different ranks; a channel is
therefore used again only if all ranks have it back (see `TorchTransport.open`).
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

from torch.distributed import distributed_c10d as c10d

from ..errors import PeerError
from .base import Groups

resolve_group: Any = c10d._resolve_process_group
"""The process group of a name; raises where it was destroyed."""


class Channel:
    """A process group, by name: a reference that outlives `destroy_process_group` makes Gloo abort at exit."""

    def __init__(self, group: Any) -> None:
        self._name: str = group.group_name
        self._group = weakref.ref(group)

    def group(self) -> Any:
        """The group; raises if it was destroyed, even if another has its name now."""
        try:
            found = resolve_group(self._name)
        except (RuntimeError, ValueError):
            found = None
        if found is None or found is not self._group():
            raise PeerError(
                f"the process group {self._name!r} has been destroyed; attach after init_process_group() and "
                "train before destroy_process_group()."
            )
        return found


class Pool:
    """The channels of a process group that no transport uses, by an identifier that all ranks know."""

    def __init__(self, group: Any) -> None:
        self.idle: dict[str, Channel] = {"own": Channel(group)}
        self.splits: dict[Groups, Channel] = {}
        """The process group of this rank in each division of the ranks into groups."""

    def offer(self, count: int) -> list[str]:
        """Up to `count` identifiers, oldest first."""
        if len(self.idle) < count:
            gc.collect()  # handles that were dropped return their channels
        return list(self.idle)[:count]

    def has(self, identifier: str) -> bool:
        """Whether a channel is idle on this rank."""
        if identifier not in self.idle:
            gc.collect()
        return identifier in self.idle


_pools: weakref.WeakKeyDictionary[Any, Pool] = weakref.WeakKeyDictionary()


def pool_of(group: Any) -> Pool:
    """The pool of a process group."""
    return _pools.setdefault(group, Pool(group))


class Lease:
    """The channels of one transport, and how many of its collectives have not ended."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.channels: list[Channel] = []
        self._identifiers: list[str] = []
        self.flying = 0

    def __len__(self) -> int:
        return len(self.channels)

    def take(self, identifier: str) -> None:
        """Add an idle channel."""
        self.add(identifier, self._pool.idle.pop(identifier))

    def add(self, identifier: str, channel: Channel) -> None:
        """Add a channel that was just made."""
        self.channels.append(channel)
        self._identifiers.append(identifier)

    def release(self) -> None:
        """Return the channels, unless a collective may still be matched by another rank's next one."""
        if self.flying == 0:
            self._pool.idle.update(zip(self._identifiers, self.channels))
        self.channels, self._identifiers = [], []
