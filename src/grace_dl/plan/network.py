"""The time of a collective: α · (sequential messages) + β · (bytes through the busiest link), on every level it uses."""

from __future__ import annotations

import math
from dataclasses import replace

from ..pipeline.request import External, Gather, Grouped, Idle, Request, Spread, Sum, Swap
from .cluster import Cluster

Kind = type[Sum] | type[Gather] | type[Spread] | type[Swap] | type[External]


def messages(kind: Kind, ranks: int, engine: str) -> int:
    """Messages that one collective among `ranks` sends one after another.

    Rings take W - 1 steps (an all-reduce twice that). NCCL replaces rings by trees where latency dominates; an all-to-all posts
    its messages at once, so only their setup is counted. A `Spread` is one binomial broadcast per rank.

    >>> [messages(kind, 8, "gloo") for kind in (Sum, Gather, Swap)]
    [14, 7, 7]
    >>> messages(Sum, 1024, "nccl")
    20
    """
    if ranks == 1:
        return 0
    depth = math.ceil(math.log2(ranks))
    if kind is Sum:
        return 2 * depth if engine == "nccl" else 2 * (ranks - 1)
    if kind is Spread:
        return ranks * depth
    if kind is Gather and engine == "nccl":
        return depth
    return ranks - 1


def node_bytes(kind: Kind, leaving: float, cluster: Cluster) -> float:
    """Bytes that leave a node when `leaving` bytes leave each of its ranks.

    A ring crosses each node boundary once, whatever the ranks per node. Direct messages (all-to-all, broadcasts) cross it
    for every pair of ranks on different nodes.
    """
    workers, ranks = cluster.workers, cluster.ranks_per_node
    if cluster.nodes == 1 or workers == 1:
        return 0.0
    if kind in (Sum, Gather):
        return leaving
    return ranks * leaving * (workers - ranks) / (workers - 1)


def collective_load(request: Request, cluster: Cluster, seconds: float) -> float:
    """Share of its computing that a rank spends on messages while a collective of `seconds` runs."""
    processing = request.leaving_bytes(cluster.workers) * cluster.outer.processing
    return min(1.0, processing / seconds) if seconds else 0.0


def collective_seconds(request: Request, cluster: Cluster) -> float:
    """Seconds of one collective among all ranks, or in groups at once, with the network otherwise idle."""
    load = 1.0
    if isinstance(request, Grouped):
        load = request.load
        cluster = replace(cluster, ranks_per_node=1) if request.between else replace(cluster, nodes=1)
        request = request.request
    workers = cluster.workers
    if workers == 1 or isinstance(request, Idle):
        return 0.0
    kind = type(request)
    leaving = load * request.leaving_bytes(workers)
    inner, outer = cluster.inner, cluster.outer
    several_ranks, several_nodes = cluster.ranks_per_node > 1, cluster.nodes > 1
    latency = max(inner.latency * several_ranks, outer.latency * several_nodes)
    within = leaving * inner.seconds_per_byte if several_ranks else 0.0
    between = node_bytes(kind, leaving, cluster) * outer.seconds_per_byte if several_nodes else 0.0
    return latency * messages(kind, workers, cluster.engine) + max(within, between)
