"""Step times of methods on clusters: profile, network, codecs and timeline put together."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from ..algebra.base import Method, Single
from ..algebra.local_rule import LocalRule
from ..communicator.base import Communicator
from ..communicator.state import State
from ..pipeline.outline import Stage, blank, blank_bucket
from ..pipeline.request import Sum
from .cluster import Cluster
from .codecs import FREE, CodecCost
from .echo import EchoTransport
from .network import collective_load, collective_seconds
from .profile import Parameter, Profile
from .timeline import BucketCost, Round, Timeline, simulate

DDP = "ddp"
"""The baseline: gradients averaged by the engine's all-reduce, as DDP does without a hook."""
SETTLED = 10**9
"""The training step that is planned: schedules and warm-ups are over."""

Costs = Mapping[Single, CodecCost]
Planned = Method | LocalRule
"""What can be planned beside plain DDP: methods at every step, and local steps."""


@dataclass(frozen=True)
class Prediction:
    """The predicted training step of one method on one cluster."""

    method: str
    cluster: Cluster
    seconds: float
    """The whole step."""
    compute: float
    """Forward, backward and update: the step without communication."""
    codec: float
    """Encoding and decoding."""
    waiting: float
    """Waiting for the network when nothing is left to compute."""
    leaving_bytes: float
    """Bytes that leave a rank."""
    timeline: Timeline = field(repr=False, compare=False)
    """Of local steps: that of one exchange."""
    every: int = 1
    """Steps from one exchange to the next; with local steps all figures above are means over a period."""

    @property
    def efficiency(self) -> float:
        """Step time without communication, relative to this step."""
        return self.compute / self.seconds if self.seconds else 1.0

    @property
    def exchange_bytes(self) -> float:
        """Bytes that leave a rank in one exchange."""
        return self.leaving_bytes * self.every


def parts_of(planned: Iterable[Planned]) -> list[Single]:
    """The single methods whose codecs must be measured to plan these methods, including their warm-up stages."""
    methods = (each.method if isinstance(each, LocalRule) else each for each in planned)
    return list(dict.fromkeys(part for method in methods for part in method.parts()))


Routes = list[tuple[CodecCost, list[Stage]]]
"""The stages of one bucket for each method in it, with the cost of the method's codec."""


@cache
def _plain(nbytes: int) -> list[Stage]:
    return [Stage(Sum(blank(nbytes))), Stage(None)]


class Planner:
    """Predicts steps of one profile with given codec costs; layouts are computed once for each number of workers."""

    def __init__(
        self, profile: Profile, costs: Costs, buckets: Sequence[list[Parameter]] | None = None
    ) -> None:
        """`buckets`: the real ones, if they are known; by default those that DDP would make."""
        self.profile = profile
        self.costs = costs
        self._buckets = profile.buckets() if buckets is None else buckets
        self._layouts = [blank_bucket(p[:3] for p in bucket) for bucket in self._buckets]
        self._stages: dict[tuple[Method | None, int, int], list[Routes]] = {}

    def stages(self, method: Method | None, workers: int, ranks_per_node: int = 1) -> list[Routes]:
        """The stages of every bucket."""
        key = method, workers, ranks_per_node
        if key not in self._stages:
            if method is None:
                found: list[Routes] = [[(FREE, _plain(bucket.nbytes))] for bucket in self._layouts]
            else:
                transport, state = EchoTransport(workers, ranks_per_node), State()
                built = {part: part.build(transport, state) for part in method.parts()}
                alike: dict[Hashable, Routes] = {}
                found = []
                for place, bucket in enumerate(self._buckets):
                    layout = tuple((method.resolve(p.name, SETTLED), p.shape, p.dtype) for p in bucket)
                    if layout not in alike:
                        alike[layout] = self._routes(method, built, place)
                    found.append(alike[layout])
            self._stages[key] = found
        return self._stages[key]

    def _routes(self, method: Method, built: Mapping[Single, Communicator], place: int) -> Routes:
        members: dict[Single, list[Parameter]] = {}
        for parameter in self._buckets[place]:
            members.setdefault(method.resolve(parameter.name, SETTLED), []).append(parameter)
        if len(members) == 1:
            layouts = dict.fromkeys(members, self._layouts[place])
        else:
            layouts = {part: blank_bucket((p[:3] for p in own), whole=False) for part, own in members.items()}
        return [
            (self.costs[part], built[part].outline(layout, self.costs[part].payload_bytes))
            for part, layout in layouts.items()
        ]

    def bucket_costs(self, method: Method | None, cluster: Cluster) -> list[BucketCost]:
        """The predicted cost of every bucket."""
        costs = []
        for bucket, routes in zip(
            self._buckets, self.stages(method, cluster.workers, cluster.ranks_per_node)
        ):
            rounds, decode = [], 0.0
            for cost, stages in routes:
                for stage in stages:
                    if stage.request is None:
                        decode += cost.before(stage)
                    else:
                        wire = collective_seconds(stage.request, cluster)
                        load = collective_load(stage.request, cluster, wire)
                        rounds.append(Round(cost.before(stage), wire, load))
            costs.append(BucketCost(bucket[-1].ready, rounds, decode))
        return costs

    def predict(self, method: Planned | None, cluster: Cluster) -> Prediction:
        """The step of a method or of local steps on a cluster; None for plain DDP."""
        if isinstance(method, LocalRule):
            return self._predict_local(method, cluster)
        profile = self.profile
        costs = self.bucket_costs(method, cluster)
        timeline = simulate(profile.backward, costs, one_order=profile.device != "cpu")
        return Prediction(
            DDP if method is None else str(method),
            cluster,
            profile.forward + timeline.seconds + profile.update,
            profile.compute,
            timeline.codec,
            timeline.waiting,
            self._leaving(method, cluster),
            timeline,
        )

    def _leaving(self, method: Method | None, cluster: Cluster) -> int:
        return sum(
            stage.request.leaving_bytes(cluster.workers)
            for bucket in self.stages(method, cluster.workers, cluster.ranks_per_node)
            for _, stages in bucket
            for stage in stages
            if stage.request is not None
        )

    def _predict_local(self, rule: LocalRule, cluster: Cluster) -> Prediction:
        """The mean step of a period: nothing of an exchange hides behind backward, `delay` steps of it do behind training.

        Fragments are exchanged one at a time, each within its own delay. The outer optimizer takes as long as an update.
        """
        profile = self.profile
        costs = [replace(cost, ready=0.0) for cost in self.bucket_costs(rule.method, cluster)]
        exchange = simulate(0.0, costs, one_order=profile.device != "cpu")
        hidden = rule.fragments * rule.delay * profile.compute
        codec, waiting = exchange.codec / rule.every, max(0.0, exchange.waiting - hidden) / rule.every
        outer = 0.0 if rule.plain else profile.update / rule.every
        return Prediction(
            str(rule),
            cluster,
            profile.compute + outer + codec + waiting,
            profile.compute,
            codec + outer,
            waiting,
            self._leaving(rule.method, cluster) / rule.every,
            exchange,
            rule.every,
        )

    def break_even(self, method: Planned, cluster: Cluster) -> float:
        """The link rate in bits per second above which plain DDP is faster; 0: always, infinity: never.

        Found by bisection between 1 Mbit/s and 10 Tbit/s.
        """

        def gain(bits: float) -> float:
            there = cluster.at_rate(bits)
            return self.predict(None, there).seconds - self.predict(method, there).seconds

        low, high = 1e6, 1e13
        if gain(low) <= 0:
            return 0.0
        if gain(high) > 0:
            return math.inf
        for _ in range(24):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if gain(middle) > 0 else (low, middle)
        return math.sqrt(low * high)
