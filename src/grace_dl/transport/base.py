"""The interface of a transport."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import ConfigError, LayoutError

Groups = tuple[tuple[int, ...], ...]
"""Ranks in groups of equal size; every rank is in one of them."""


class Handle(abc.ABC):
    """A collective in progress."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Block until it is complete; raises `PeerError` if another rank failed."""

    @abc.abstractmethod
    def done(self) -> bool:
        """Whether `wait` would return immediately."""

    def wait_on_device(self) -> None:
        """Let the device's later work wait for it, where collectives run on a device; `wait` elsewhere.

        The host must not read results before `Transport.complete`.
        """
        self.wait()


class Done(Handle):
    """A collective that completed immediately."""

    def wait(self) -> None:
        pass

    def done(self) -> bool:
        return True


class All(Handle):
    """Several collectives as one."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        self._handles = handles

    def wait(self) -> None:
        for handle in self._handles:
            handle.wait()

    def wait_on_device(self) -> None:
        for handle in self._handles:
            handle.wait_on_device()

    def done(self) -> bool:
        return all(handle.done() for handle in self._handles)


class Transport(abc.ABC):
    """Asynchronous collectives among `size` ranks.

    Collectives of one channel are matched in the order they are issued, which must be the same on every rank; channels
    are independent of each other. Buffers belong to the transport until the handle's `wait` returns.
    """

    rank: int
    size: int

    stale = False
    """Whether the engine was restarted since this was created, perhaps with different ranks."""

    renewable = False
    """Whether it can be `renew`ed, perhaps with ranks that join without any state."""

    def renew(self) -> Transport:
        """A new transport on the current engine."""
        raise NotImplementedError

    one_order = False
    """Whether collectives must be issued in one order on all ranks, whatever their channel, as on engines that run them on
    a device. Later rounds then wait for the end of the step, and all use channel 0."""

    def open(self, channels: int, text: str) -> None:
        """Prepare this many channels for the method that `text` describes; all ranks must call it.

        Ranks with different texts get an error here, or from the first `agree`.
        """

    def close(self) -> None:
        """Release the channels, also those of groups of its ranks."""
        for group in self.subgroups.values():
            group.close()

    # Steps ----------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """A step begins. All ranks begin equally many. Raises `PeerError` if the device is `blocked`."""

    def leave_step(self, why: str) -> None:
        """Tell the other ranks that this one leaves the step because of an error, if they would not notice otherwise."""

    def complete(self) -> None:
        """Block the host until all collectives are complete for which the device waits; raises as `Handle.wait` does."""

    @property
    def blocked(self) -> bool:
        """Whether the device waits for collectives that `complete` has found to fail: no value can be read from it."""
        return False

    # Groups of ranks ------------------------------------------------------------------------------------

    def nodes(self) -> Groups | None:
        """The ranks of each node, if the engine knows them."""
        return None

    def split(self, groups: Groups) -> Transport:
        """A transport among the ranks of this rank's group. All ranks call it with the same groups, which they have agreed on.

        Use `subgroup`, which calls it when channels are opened.
        """
        raise ConfigError(f"{type(self).__name__} has no collectives among some of its ranks only.")

    @property
    def subgroups(self) -> dict[Groups, Transport]:
        """The transports of `subgroup`, by groups: all methods of a session share them."""
        found: dict[Groups, Transport] = vars(self).setdefault("_subgroups", {})
        return found

    # Collectives ----------------------------------------------------------------------------------------

    @abc.abstractmethod
    def allreduce(self, tensor: Tensor, channel: int = 0) -> Handle:
        """Sum `tensor` over ranks, in place; the result is bit-identical on every rank."""

    @abc.abstractmethod
    def allgather(self, out: Tensor, tensor: Tensor, channel: int = 0) -> Handle:
        """Concatenate the 1-D tensors of all ranks, which have the same size, in `out`."""

    @abc.abstractmethod
    def alltoall(
        self,
        out: Tensor,
        tensor: Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        channel: int = 0,
    ) -> Handle:
        """Send the r-th part of `tensor` to rank r; `out` receives the parts of all ranks, in order."""

    @abc.abstractmethod
    def broadcast(self, tensor: Tensor, root: int, channel: int = 0) -> Handle:
        """Overwrite `tensor` with that of rank `root`."""

    @abc.abstractmethod
    def barrier(self, channel: int = 0) -> Handle:
        """Wait until every rank has called this."""

    def agree(self, text: str) -> None:
        """Raise on every rank unless all ranks pass the same `text`."""
        digest = torch.tensor(
            list(hashlib.blake2b(text.encode(), digest_size=32).digest()), dtype=torch.uint8
        )
        everyone = torch.empty(self.size * digest.numel(), dtype=torch.uint8)
        self.allgather(everyone, digest).wait()
        for rank, other in enumerate(everyone.view(self.size, -1)):
            if not torch.equal(other, digest):
                raise LayoutError(disagreement(self.rank, text, rank, None))


def disagreement(rank: int, mine: str, other: int, theirs: str | None) -> str:
    """The message for two ranks with different layouts or methods in one exchange."""
    detail = "" if theirs is None else f"\n  rank {other} has: {theirs}"
    return (
        f"rank {rank} and rank {other} disagree on what to exchange.\n  rank {rank} has: {mine}{detail}\n"
        "All ranks must use the same model, the same method with the same settings, and switch at the same step."
    )
