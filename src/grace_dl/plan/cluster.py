"""A cluster: nodes, ranks on each, and the links within and between them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from ..errors import ConfigError
from ..formatting import parse_rate
from ..formatting import rate as show_rate
from ..settings import choice, number, whole

ENGINES = ("gloo", "nccl")
MOST_WORKERS = 1_000_000
GOODPUT = 0.95
"""Share of a nominal link rate that payload reaches; TCP and IP headers take about 5 %."""

_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|ms|us|µs|ns)")
_CLUSTER = re.compile(r"(\d+)(?:\s*[x×]\s*(\d+))?\s*@\s*(\S+)")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def parse_seconds(label: str, text: str) -> float:
    """Seconds of a duration such as `120ms` or `20us`.

    >>> parse_seconds("--backward", "120ms")
    0.12
    """
    found = _TIME.fullmatch(text.strip())
    if not found:
        raise ConfigError(f"{label} {text!r} is no duration; write 1.5s, 120ms or 20us.")
    return float(found[1]) * _SECONDS[found[2]]


@dataclass(frozen=True)
class Link:
    """One level of the network: a message of n bytes takes `latency` + 8 n / (`goodput` · `bits`) seconds."""

    bits: float
    """Nominal rate in bits per second."""
    latency: float
    """α: seconds a message takes regardless of its size."""
    goodput: float = GOODPUT
    processing: float = 0.0
    """Seconds of computing that a byte costs a worker whose cores all compute: sockets need them, too. 0: cores are spare."""

    @property
    def seconds_per_byte(self) -> float:
        """β."""
        return 8 / (self.goodput * self.bits)


BETWEEN_NODES = Link(math.inf, 30e-6)
WITHIN_NODE = Link(100e9, 5e-6)
"""Defaults: shared memory or PCIe within a node, a switched Ethernet between nodes."""


@dataclass(frozen=True)
class Cluster:
    """`nodes` of `ranks_per_node` ranks each.

    >>> cluster = Cluster.parse("64x8@25gbit")
    >>> cluster.workers, cluster.outer.bits
    (512, 25000000000.0)
    """

    nodes: int
    ranks_per_node: int
    outer: Link
    """The link of a node, shared by its ranks."""
    inner: Link = WITHIN_NODE
    engine: str = "gloo"
    """Which collective algorithms are assumed, see `network`."""

    def __post_init__(self) -> None:
        whole("nodes", self.nodes, "the number of machines", least=1)
        whole("ranks_per_node", self.ranks_per_node, "the number of workers on each machine", least=1)
        choice("engine", self.engine, ENGINES, "the communication library")
        if self.workers > MOST_WORKERS:
            raise ConfigError(
                f"{self.nodes} × {self.ranks_per_node} are {self.workers:,} workers; the model is made for up to {MOST_WORKERS:,}."
            )
        for level, link in (("between nodes", self.outer), ("within a node", self.inner)):
            number(
                f"the link rate {level}",
                link.bits,
                "bits per second; 25gbit is 25e9",
                least=1e3,
                most=math.inf,
            )
            number(f"the latency {level}", link.latency, "seconds; 30us is usual", least=0, most=10)

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """Nodes × ranks per node @ link rate between nodes: `64x8@25gbit`, or `4@1gbit` for one rank per node."""
        found = _CLUSTER.fullmatch(text.strip())
        if not found:
            raise ConfigError(
                f"{text!r} is no cluster; write nodes x ranks per node @ link rate, such as 64x8@25gbit or 4@1gbit."
            )
        nodes, ranks = int(found[1]), int(found[2] or 1)
        try:
            bits = parse_rate(found[3])
        except ConfigError:
            raise ConfigError(
                f"{text!r}: {found[3]!r} is no link rate; write 100mbit, 1gbit, 10gbit or 400gbit."
            ) from None
        return cls(nodes, ranks, replace(BETWEEN_NODES, bits=bits))

    @property
    def workers(self) -> int:
        return self.nodes * self.ranks_per_node

    def resized(self, workers: int) -> Cluster:
        """The same kind of cluster with at least this many workers, on as few nodes as possible."""
        ranks = min(self.ranks_per_node, workers)
        return replace(self, nodes=-(-workers // ranks), ranks_per_node=ranks)

    def at_rate(self, bits: float) -> Cluster:
        """The same cluster with links of another rate between nodes."""
        return replace(self, outer=replace(self.outer, bits=bits))

    def __str__(self) -> str:
        return f"{self.nodes}×{self.ranks_per_node} @ {show_rate(self.outer.bits)}"
