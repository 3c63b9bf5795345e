"""A group of a transport's ranks, for example those of a node, as a transport of its own."""

from __future__ import annotations

from .base import Groups, Transport
from .forwarding import Forwarding
from .local import LocalTransport


class Subgroup(Forwarding):
    """The group of `groups` that holds this rank. It is connected when it is opened, which all ranks of `whole` do."""

    def __init__(self, whole: Transport, groups: Groups) -> None:
        own = next(group for group in groups if whole.rank in group)
        self.rank = own.index(whole.rank)
        self.size = len(own)
        self.whole = whole
        self.one_order = whole.one_order
        self._groups = groups
        self._inner = LocalTransport() if self.size == 1 else None

    def open(self, channels: int, text: str) -> None:
        if self._inner is None:
            self._inner = self.whole.split(self._groups)
        self._inner.open(channels, text)

    def agree(self, text: str) -> None:
        """Nothing: all ranks of the whole have agreed on what its groups exchange."""


def subgroup(whole: Transport, groups: Groups) -> Transport:
    """The transport of this rank's group; the same object for the same groups."""
    return whole.subgroups.setdefault(groups, Subgroup(whole, groups))
