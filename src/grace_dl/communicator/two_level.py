"""Two levels: gradients are averaged within each node first, and one rank of a node exchanges a parameter with other nodes.

The parameters of a bucket are dealt out to the ranks of a node. Each rank gets the node's average of its share, runs the
outer method with the ranks of other nodes that have the same share, and passes the result on within its node. What leaves
a node is thus what the outer method sends for one rank a node, and all ranks of a node take part in the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ..errors import PayloadError, PeerError
from ..memory.base import Memory
from ..memory.conversion import SavedMemory, convert
from ..pipeline.bucket import Bucket, Segment
from ..pipeline.driver import Program
from ..pipeline.frame import align
from ..pipeline.outline import Estimate, Stage, blank
from ..pipeline.request import Grouped, Idle, Spread, Swap, Verdict
from ..transport.base import Groups, Transport
from ..transport.subgroup import subgroup
from .base import Communicator, Joined
from .node_scatter import NodeScatter, Owners
from .scatter import Half, Slices, place_of
from .state import State
from .transaction import BucketTransaction, peer_errors


class NodeState(State):
    """The state that the outer method sees: steps are those of the whole, and residuals those of a node's average."""

    def __init__(self, whole: State, ranks: int) -> None:
        super().__init__()
        self._whole = whole
        self._ranks = ranks

    def step(self, name: str) -> int:
        return self._whole.step(name)

    def commit(self, name: str) -> None:
        """Counted once, for the whole."""

    def carry(self, name: str, owed: Tensor | None) -> None:
        # The owner alone has it, and the next average within the node divides by the number of ranks.
        self._whole.carry(name, None if owed is None else self._ranks * owed)


@dataclass(slots=True)
class Shares:
    """The plan of a bucket."""

    owners: list[int]
    """The owner of each segment."""
    slices: Slices
    half: Half
    results: list[Tensor]
    """A buffer for the results of each owner: a flag for each parameter of its share, then their values."""
    flags: list[Tensor]
    values: list[list[Tensor]]
    mine: Bucket
    """This rank's share; its segments are views of its results."""


class TwoLevel(Communicator):
    """Runs `inner` among the ranks of each node and `outer` among ranks of different nodes.

    `groups` are the ranks of each node. `build_inner` and `build_outer` make the communicators of a transport and a state.
    """

    name = "two-level"
    in_groups = True

    def __init__(
        self,
        transport: Transport,
        state: State,
        groups: Groups,
        build_inner: Callable[[Transport, State], NodeScatter],
        build_outer: Callable[[Transport, State], Communicator],
        label: str,
    ) -> None:
        self.groups = groups
        columns = tuple(tuple(sorted(column)) for column in zip(*groups))
        within, between = subgroup(transport, groups), subgroup(transport, columns)
        self.inner = build_inner(within, state)
        self.outer = build_outer(between, NodeState(state, within.size))
        super().__init__(
            self.outer.compressor, self.outer.memory, transport=transport, state=state, label=label
        )
        self._place = between.rank, within.rank, within.size  # the node, the rank on it, and how many it has
        self.owners = Owners(*self._place)

    @property
    def channels(self) -> int:
        return 1

    def connect(self) -> None:
        text = self.label
        self.inner.transport.open(1, text)
        self.outer.transport.open(self.outer.channels, text)

    def joint(self, finite: bool, failed: bool, device: torch.device) -> bool:
        counts = torch.tensor([not finite, failed], dtype=torch.float32, device=device)
        for level in (self.inner, self.outer):
            level.transport.allreduce(counts).wait()
        nonfinite, failures = counts.tolist()
        if failures and not failed:
            raise PeerError(
                "another rank could not exchange its gradients and says why in its own log; the step was given up on "
                "every rank."
            )
        return not nonfinite

    # State --------------------------------------------------------------------------------------------

    def memories(self) -> dict[str, Memory]:
        return {**self.outer.memories(), "inner": self.inner.memory, "owners": self.owners}

    def owed(self, name: str) -> Tensor | None:
        """Of a node's average the owner has the residual for all ranks of the node, hence the factor."""
        mine, shared = self.inner.owed(name), self.outer.owed(name)
        if shared is None:
            return mine
        shared = self.inner.transport.size * shared
        return shared if mine is None else mine + shared

    def take(self, name: str, other: Communicator) -> None:
        if not isinstance(other, TwoLevel) or other.groups != self.groups:
            other.release(name)
            return
        self.inner.take(name, other.inner)
        self.outer.take(name, other.outer)
        if name in other.owners.state:
            self.owners.state[name] = other.owners.state.pop(name)
        self.forget_plans()  # owners and the outer method's state are laid out with a bucket

    def forget_plans(self) -> None:
        super().forget_plans()
        self.outer.forget_plans()

    def misplaced(self, saved: Mapping[str, SavedMemory]) -> str | None:
        for slots in saved["owners"].values():
            node, rank, size = slots["owner"].tolist()[1:4]
            if (node, rank, size) != self._place:
                return (
                    f"the saved state is of rank {rank} of the {size} on node {node}, but here is rank "
                    f"{self._place[1]} of the {self._place[2]} on node {self._place[0]}"
                )
        return None

    @property
    def saved_as(self) -> str:
        return f"{self.name} {self.outer.name}"

    def joined_by(
        self, way: type[Communicator], saved: Mapping[str, SavedMemory], rank: int, size: int
    ) -> Joined:
        for slots in saved["owners"].values():
            _, rank, _, ranks = slots["owner"].tolist()[:4]
            size //= ranks
            break
        found = way.joined(self.outer.memory, saved, rank, size)
        return found._replace(inner=saved["inner"], owners=saved["owners"])

    def converted(
        self, old: Sequence[Joined], rank: int, size: int
    ) -> tuple[dict[str, SavedMemory], dict[str, Tensor]]:
        """Parameters are dealt out anew; what old nodes have not sent is converted as the outer method does it."""
        inner = convert(self.inner.memory, [state.inner for state in old], rank, size)
        if size == 1 < self.transport.size:  # the same ranks, with another outer communicator
            memories, owed = self.outer.converted(old, 0, 1)
            owners = old[0].owners
            mine = [name for name, slots in owners.items() if int(slots["owner"][0]) == self._place[1]]
        else:
            sizes = {name: int(slots["owner"][-1]) for state in old for name, slots in state.owners.items()}
            dealt = Owners(*self._place)
            for name, owner in dealt.dealt(sizes.items()).items():
                dealt.keep(name, owner, sizes[name])
            owners, mine = dealt.state, [name for name in sizes if dealt.of(name) == self._place[1]]
            between = self.outer.transport
            memories, owed = self.outer.converted(self._by_node(old), between.rank, between.size)
        kept: dict[str, SavedMemory] = {
            label: {name: memory[name] for name in mine if name in memory}
            for label, memory in memories.items()
        }
        ranks = self.inner.transport.size
        carried = {name: tensor * (ranks if name in mine else 0) for name, tensor in owed.items()}
        return {**kept, "inner": inner, "owners": owners}, carried

    def _by_node(self, old: Sequence[Joined]) -> list[Joined]:
        """The states of ranks as states of nodes: each parameter from its owner.

        Owners that are gone owe nothing; the rest of their state is that of another node.
        """
        records = [slots["owner"].tolist() for state in old for slots in state.owners.values()]
        nodes = [Joined({}, {}) for _ in range(len(old) // records[0][3] if records else 0)]
        stand_ins: dict[str, Any] = {}
        for state in old:
            for name, slots in state.owners.items():
                owner, node, rank, *_ = slots["owner"].tolist()
                found = nodes[node]
                for whole, part in ((found.memory, state.memory), (found.of_average, state.of_average)):
                    if owner == rank and name in part:
                        cast(dict[str, Any], whole)[name] = part[name]
                if name in found.memory and name not in stand_ins:
                    stand_ins[name] = self.memory.without_residual(found.memory[name])
        return [node._replace(memory={**stand_ins, **node.memory}) for node in nodes]

    # Layout -------------------------------------------------------------------------------------------

    def description(self) -> dict[str, Any]:
        return {
            "method": self.label,
            "communicator": self.name,
            "nodes": self.groups,
            "inner": self.inner.description(),
            "outer": self.outer.description(),
        }

    def _dense_flags(self, bucket: Bucket) -> list[bool]:
        return [False] * len(bucket.segments)  # each level decides for itself

    def _lay_out(self, bucket: Bucket, dense: Sequence[bool]) -> Shares:
        owners = self._dealt(bucket)
        for segment, owner in zip(bucket.segments, owners):
            self.owners.keep(segment.name, owner, segment.flat.numel())
        slices = self.inner.divide(bucket, owners)
        results, flags, values, shares = [], [], [], []
        for pieces in slices.owned:
            segments = [bucket.segments[piece.place] for piece in pieces]
            head, sizes = _head_bytes(len(segments)), [segment.flat.numel() for segment in segments]
            result = torch.zeros(_result_bytes(bucket, sizes), dtype=torch.uint8, device=bucket.device)
            flat = result[head : head + sum(sizes) * bucket.dtype.itemsize].view(bucket.dtype)
            parts = list(flat.split(sizes)) if sizes else []
            results.append(result)
            flags.append(result[: len(segments)])
            values.append(parts)
            shares.append(Bucket(bucket.key, list(map(_like, segments, parts)), None, bucket.compress_all))
        mine = shares[self._place[1]]
        # Residuals of parameters that are not compressed any more are carried over, before this step is encoded.
        self.inner.release_dense(bucket)
        if mine.segments:
            self.outer._plan(mine)
        return Shares(owners, slices, self.inner.halves(bucket, slices), results, flags, values, mine)

    def _dealt(self, bucket: Bucket) -> list[int]:
        owners = self.owners.dealt((segment.name, segment.flat.numel()) for segment in bucket.segments)
        return [owners[segment.name] for segment in bucket.segments]

    def outline(self, bucket: Bucket, estimate: Estimate | None = None) -> list[Stage]:
        slices = self.inner.divide(bucket, self._dealt(bucket))
        ranks, rank = self.inner.transport.size, self._place[1]
        sizes = slices.sizes
        swap = Swap(blank(ranks * sizes[rank]), blank(sum(sizes)), [sizes[rank]] * ranks, sizes, rank)
        columns = []
        for pieces in slices.owned:
            segments = [bucket.segments[piece.place] for piece in pieces]
            share = Bucket(bucket.key, segments, None, bucket.compress_all)
            columns.append(self.outer.outline(share, estimate) if segments else [Stage(None)])
        size = self.outer.transport.size
        loads = [
            sum(s.request.leaving_bytes(size) for s in stages if s.request is not None) for stages in columns
        ]
        # Ranks wait for the one with most to exchange; all of a node share its link.
        busiest = columns[loads.index(max(loads))]
        load = sum(loads) / max(loads) if max(loads) else 1.0
        parts = [blank(_result_bytes(bucket, [piece.stop for piece in pieces])) for pieces in slices.owned]
        within, between = self.inner.transport, self.outer.transport
        return [
            Stage(Grouped(swap, within, between=False)),
            *(
                Stage(Grouped(stage.request, between, True, load), stage.decode, stage.encode)  # type: ignore[arg-type]
                for stage in busiest[:-1]
            ),
            Stage(Grouped(Spread(parts, rank), within, between=False), busiest[-1].decode),
            Stage(None),
        ]

    # Exchange -----------------------------------------------------------------------------------------

    def program(self, bucket: Bucket) -> Program:
        shares: Shares = self._plan(bucket).layout
        inner, within, between = self.inner, self.inner.transport, self.outer.transport
        first, outer = BucketTransaction(self.transport), None
        try:
            yield Grouped(inner._scatter(bucket, shares.slices, shares.half, first), within, between=False)
            flags = inner.averages(bucket, shares.slices, shares.half, first, shares.mine)
            outer = self.outer.program(shares.mine) if shares.mine.segments else None
            found = Verdict() if outer is None else next(outer)
            # All ranks of a node have equally many rounds, so that their next one is in the same order of buckets.
            for _ in range(self.outer.channels):
                if isinstance(found, Verdict):
                    yield Idle()
                else:
                    assert outer is not None
                    yield Grouped(found, between, between=True)  # type: ignore[arg-type]
                    found = next(outer)
            assert isinstance(found, Verdict)
            commit = yield _with_errors(found, first.errors or peer_errors(flags))
            if outer is not None:
                _conclude(outer, commit)
            used = [segment.used for segment in shares.mine.segments]
            shares.flags[within.rank].copy_(torch.tensor(used, dtype=torch.uint8))
            results = Spread(shares.results, within.rank, read=True)
            yield Grouped(results, within, between=False)
        except BaseException:
            first.abort()
            if outer is not None:
                outer.close()
            raise
        self._deliver(bucket, shares, first, commit)

    def _deliver(self, bucket: Bucket, shares: Shares, first: BucketTransaction, commit: bool) -> None:
        """Store the results of all owners, and settle what this rank has sent to them."""
        flags = torch.cat(shares.flags).tolist()
        if any(flag > 1 for flag in flags):
            first.abort()
            raise PayloadError(
                f"the results of {bucket.segments[0].name!r} and others have invalid flags; bytes were changed on the way."
            )
        read = iter(flags)
        for owner, (pieces, values) in enumerate(zip(shares.slices.owned, shares.values)):
            for number, (piece, value) in enumerate(zip(pieces, values)):
                segment, used = bucket.segments[piece.place], bool(next(read))
                segment.used = used
                first.settle(place_of(owner, number), commit and used)
                if used:
                    segment.flat.copy_(value)
                    if commit:
                        self.state.commit(segment.name)


def _conclude(program: Program, commit: bool) -> None:
    """Answer a program's verdict, with which it ends."""
    try:
        program.send(commit)
    except StopIteration:
        return
    raise AssertionError("the outer method has a round after its verdict")


def _with_errors(verdict: Verdict, errors: list[Exception]) -> Verdict:
    def decide(codes: list[float]) -> tuple[bool, list[Exception]]:
        finite, found = verdict.decide(codes)
        return finite, [*errors, *found]

    return Verdict(verdict.codes, decide)


def _like(segment: Segment, flat: Tensor) -> Segment:
    """The same parameter, with its values in other memory."""
    shape, strides = segment.view.shape, segment.view.stride()
    return Segment(segment.name, flat, flat.as_strided(shape, strides, flat.storage_offset()))


def _result_bytes(bucket: Bucket, sizes: Sequence[int]) -> int:
    return align(_head_bytes(len(sizes)) + sum(sizes) * bucket.dtype.itemsize)


def _head_bytes(count: int) -> int:
    """Values start at a cache line, as in memory of their own: products of matrices round by alignment."""
    return -(-count // 64) * 64
