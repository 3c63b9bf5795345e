"""Methods of two levels: one within nodes, another between them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..communicator.base import Communicator
from ..communicator.node_scatter import NodeScatter
from ..communicator.state import State
from ..communicator.two_level import TwoLevel
from ..errors import ConfigError
from ..settings import whole
from ..transport import Transport
from ..transport.base import Groups
from ..transport.local import LocalTransport
from .auto import as_part
from .base import Method, Single
from .named import build


@dataclass(frozen=True, repr=False)
class Hierarchical(Single):
    """`inner` averages within each node; `outer` exchanges between nodes, once a node."""

    inner: Single
    outer: Method
    ranks_per_node: int | None = None
    nodes: Groups | None = None
    """The ranks of each node, if they were given."""

    def resolve(self, name: str, step: int) -> Single:
        return self._with(self.outer.resolve(name, step))

    def stage(self, step: int) -> Hashable:
        return self.outer.stage(step)

    def parts(self) -> Iterator[Single]:
        yield from map(self._with, self.outer.parts())

    def _with(self, outer: Single) -> Hierarchical:
        return self if outer == self.outer else replace(self, outer=outer)

    @property
    def codec(self) -> Single:
        assert isinstance(self.outer, Single)
        return self.outer

    def build(
        self, transport: Transport, state: State, way: type[Communicator] | None = None
    ) -> Communicator:
        if way is not None:
            raise ConfigError(
                f"{self} cannot go through a {way.name}: a sharded model divides its ranks by its own mesh. Shard within "
                "nodes and replicate between them, and attach with replicas=<the method between nodes>."
            )
        inner, outer = self.inner, self.codec

        def scatter(within: Transport, state: State) -> NodeScatter:
            found = inner.build(within, state, NodeScatter)
            assert isinstance(found, NodeScatter)
            return found

        return TwoLevel(transport, state, self.groups(transport), scatter, outer.build, str(self))

    def groups(self, transport: Transport) -> Groups:
        """The ranks of each node of a transport; raises if they are not known, or do not fit."""
        size = transport.size
        if size > 1 and type(transport).split is Transport.split:
            raise ConfigError(
                f"{self} exchanges among some of the ranks, which {type(transport).__name__} cannot do; attach under "
                "torch.distributed, or use the outer method alone."
            )
        if self.ranks_per_node is not None:
            count = self.ranks_per_node
            if size % count:
                raise ConfigError(
                    f"{self}: {size} ranks are no whole number of nodes with {count} ranks each; change ranks_per_node."
                )
            return tuple(tuple(range(first, first + count)) for first in range(0, size, count))
        found = ((0,),) if size == 1 and self.nodes is None else self.nodes or transport.nodes()
        if found is None:
            raise ConfigError(
                f"{self} does not know the nodes: LOCAL_WORLD_SIZE is not set. Start the job with torchrun, or pass "
                "ranks_per_node= or nodes=."
            )
        if len({len(node) for node in found}) > 1:
            raise ConfigError(
                f"{self} needs equally many ranks on every node, but they have {[len(node) for node in found]}; pass "
                "ranks_per_node=1 to treat each rank as a node."
            )
        if sorted(rank for node in found for rank in node) != list(range(size)):
            raise ConfigError(
                f"{self}: its nodes must hold each of the {size} ranks once; give them as nodes=((0, 1), (2, 3))."
            )
        return found

    def __str__(self) -> str:
        given = [f"inner={self.inner}", f"outer={self.outer}"]
        if self.ranks_per_node is not None:
            given.append(f"ranks_per_node={self.ranks_per_node}")
        if self.nodes is not None:
            given.append(f"nodes={str([list(node) for node in self.nodes]).replace(' ', '')}")
        return f"hierarchical({'; '.join(given)})"

    def __repr__(self) -> str:
        given = {"inner": self.inner, "outer": self.outer}
        placed = {"ranks_per_node": self.ranks_per_node, "nodes": self.nodes}
        shown = {**given, **{key: value for key, value in placed.items() if value is not None}}
        return f"grace.hierarchical({', '.join(f'{key}={value!r}' for key, value in shown.items())})"


def hierarchical(
    inner: Method | None = None,
    outer: Method | None = None,
    *,
    ranks_per_node: int | None = None,
    nodes: Sequence[Sequence[int]] | Any = None,
) -> Method:
    """Average within each node first, and exchange between nodes compressed, once a node.

    Every parameter is averaged by one rank of its node, which exchanges it with the other nodes and passes the result on.
    What leaves a node is what `outer` would send with one rank per node.

    inner: the method within a node: `none()`, the default, or one that compresses elementwise, such as `int8()`.
    outer: the method between nodes, `int4()` by default; may be a schedule or chosen by parameter.
    ranks_per_node: so many consecutive ranks are a node. By default the launcher tells, with `LOCAL_WORLD_SIZE`.
    nodes: the ranks of each node, such as `((0, 1), (2, 3))`, or the axis of a `DeviceMesh` within nodes, such as
        `mesh["local"]`.

    >>> import grace_dl as grace
    >>> method = grace.hierarchical(outer=grace.topk(0.01), ranks_per_node=8)
    >>> method == grace.parse("hierarchical(inner=none; outer=topk:0.01; ranks_per_node=8)")
    True
    """
    within = build("none") if inner is None else as_part(inner, "hierarchical()")
    between = build("int4") if outer is None else as_part(outer, "hierarchical()")
    for role, method in (("inner", within), ("outer", between)):
        if any(isinstance(part, Hierarchical) for part in method.parts()):
            raise ConfigError(f"{role}={method} has two levels itself; three are not supported.")
    if not isinstance(within, Single) or list(within.parts()) != [within]:
        raise ConfigError(
            f"inner={within} changes by parameter or by step; give a single method, and let outer= change."
        )
    if ranks_per_node is not None and nodes is not None:
        raise ConfigError("ranks_per_node= and nodes= both say where the ranks are; give one of them.")
    if ranks_per_node is not None:
        whole("ranks_per_node", ranks_per_node, "the number of ranks on each node", least=1)
    within.build(LocalTransport(), State(), NodeScatter)  # rejects methods that cannot be used within a node
    return Hierarchical(within, between, ranks_per_node, None if nodes is None else _groups(nodes))


def _groups(nodes: Any) -> Groups:
    """The ranks of nodes, given as sequences or as one axis of a `DeviceMesh`; sorted, so that equal nodes are equal."""
    if hasattr(nodes, "mesh_dim_names"):
        nodes = _mesh_groups(nodes)
    try:
        found = sorted(
            tuple(sorted(whole("rank", rank, "the number of a rank", least=0) for rank in node))
            for node in nodes
        )
    except TypeError:
        found = []
    if not found or not all(found):
        raise ConfigError(
            f"nodes={nodes!r} must list the ranks of each node, as ((0, 1), (2, 3)), or be an axis of a DeviceMesh."
        )
    return tuple(found)


def _mesh_groups(mesh: Any) -> list[list[int]]:
    if mesh.ndim != 1:
        raise ConfigError(
            f"nodes={mesh} has {mesh.ndim} dimensions; pass the axis within nodes, such as mesh['local']."
        )
    root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh
    axis = root.mesh_dim_names.index(mesh.mesh_dim_names[0]) if root.ndim > 1 else 0
    ranks: list[list[int]] = root.mesh.movedim(axis, -1).reshape(-1, mesh.size()).tolist()
    return ranks
