"""Predicted step times of plans, from measured steps with the present one.

A plan says for each bucket which method exchanges it, by its place in `Auto.methods`; 0 is plain averaging. The cost model
predicts the exchange alone. What else a step takes is the same for all plans: the measured step less its predicted exchange.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..algebra.auto import Choice
from ..algebra.base import Method, Single
from ..errors import UnsupportedError
from ..plan.cluster import Cluster, Link
from ..plan.codecs import CodecCost
from ..plan.predict import Planner
from ..plan.profile import Parameter, Profile
from ..plan.timeline import BucketCost, simulate
from .timing import Layout, StepTiming

Plan = tuple[int, ...]

GROUPS = 16
"""Buckets are assigned to methods in at most this many groups of neighbours, so that the search stays short."""
NOTABLE = 0.03
"""Part of a step that a plan of several methods must be predicted to save before it is considered."""


@dataclass(frozen=True)
class Setting:
    """Where steps run."""

    workers: int
    engine: str
    device: str

    @property
    def one_order(self) -> bool:
        return self.engine != "gloo" or self.device != "cpu"


class Forecast:
    """Predicts plans; `measured` is the step with the plan `current`, `link` the network as a probe found it."""

    def __init__(
        self,
        methods: Sequence[Method],
        costs: Mapping[Single, CodecCost],
        layout: Layout,
        measured: StepTiming,
        current: Plan,
        link: Link,
        setting: Setting,
    ) -> None:
        self._methods = methods
        self._measured = measured
        self._current = current
        self._setting = setting
        ready = measured.ready
        buckets = [
            [Parameter(*parameter, ready[place]) for parameter in bucket]
            for place, bucket in enumerate(layout)
        ]
        self._backward = max(ready)
        parameters = tuple(parameter for bucket in buckets for parameter in bucket)
        profile = Profile("measured steps", parameters, 0.0, self._backward, 0.0, setting.device)
        self._planner = Planner(profile, costs, buckets)
        self._count = len(layout)
        self.link = self._calibrated(link)
        self._table = [self._bucket_costs(place, self.link) for place in range(len(methods))]

    def _bucket_costs(self, method: int, link: Link) -> list[BucketCost] | None:
        """The cost of every bucket with a method; None for a method that cannot be predicted."""
        cluster = Cluster(self._setting.workers, 1, link, engine=self._setting.engine)
        try:
            return self._planner.bucket_costs(self._methods[method], cluster)
        except UnsupportedError:
            return None

    def _exchange(self, costs: Sequence[BucketCost]) -> float:
        return simulate(self._backward, costs, self._setting.one_order).seconds

    def _calibrated(self, link: Link) -> Link:
        """The link with the rate that explains what plain averaging waited for, where that can be told.

        A compressed exchange tells little: what it waits for is codec as much as link. There the probe is used.
        """

        def tail(bits: float) -> float:
            found = self._bucket_costs(0, replace(link, bits=bits)) or []
            first = sum(cost.rounds[0].work for cost in found if cost.rounds)
            return self._exchange(found) - self._backward - first

        low, high, wanted = 1e5, 1e13, self._measured.tail
        if any(self._current) or abs(tail(link.bits) - wanted) < 0.02 * self._measured.seconds:
            return link
        if not tail(high) < wanted < tail(low):
            return link
        for _ in range(30):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if tail(middle) < wanted else (middle, high)
        return replace(link, bits=math.sqrt(low * high))

    def seconds(self, plan: Plan) -> float:
        """The predicted step; NaN if a method in it cannot be predicted."""
        plans = [[self._table[m] for m in each] for each in (plan, self._current)]
        if any(table is None for tables in plans for table in tables):
            return math.nan
        exchanges = [
            self._exchange([table[place] for place, table in enumerate(tables) if table is not None])
            for tables in plans
        ]
        return max(0.0, self._measured.seconds - exchanges[1]) + exchanges[0]

    def ranked(self) -> list[tuple[float, Plan]]:
        """Plans with their predicted steps, fastest first: one method for all buckets, and the best mixture of methods."""
        uniform = [((place,) * self._count) for place in range(len(self._methods))]
        found = sorted(((self.seconds(plan), plan) for plan in uniform), key=order)
        best = found[0]
        if not math.isnan(best[0]):
            mixed = self._improved(*best)
            if mixed[0] < best[0] - NOTABLE * self._measured.seconds:
                found.insert(0, mixed)
        return found

    def _improved(self, seconds: float, plan: Plan) -> tuple[float, Plan]:
        """The plan after changing the method of one group of buckets after another, as long as that helps."""
        size = -(-self._count // GROUPS)
        usable = [place for place, table in enumerate(self._table) if table is not None]
        for _ in range(2):
            before = seconds
            for start in range(0, self._count, size):
                for method in usable:
                    group = plan[start : start + size]
                    trial = plan[:start] + (method,) * len(group) + plan[start + size :]
                    predicted = self.seconds(trial) if trial != plan else seconds
                    if predicted < seconds:
                        seconds, plan = predicted, trial
            if seconds == before:
                break
        return seconds, plan


def order(entry: tuple[float, Plan]) -> tuple[bool, float, Plan]:
    """The key by which plans are ranked: predicted seconds, then those that cannot be predicted."""
    return math.isnan(entry[0]), 0.0 if math.isnan(entry[0]) else entry[0], entry[1]


def choice_of(plan: Plan, layout: Layout, methods: Sequence[Method]) -> Choice:
    """A plan as methods of parameters; the method of most buckets applies to parameters that come later, too."""
    default = max(dict.fromkeys(plan), key=plan.count)
    named: dict[int, list[str]] = {}
    for bucket, method in zip(layout, plan, strict=True):
        if method != default:
            named.setdefault(method, []).extend(name for name, _, _ in bucket)
    return Choice(methods[default], tuple((methods[m], tuple(names)) for m, names in sorted(named.items())))


def plan_of(choice: Choice, layout: Layout, methods: Sequence[Method]) -> Plan:
    """The plan that a choice amounts to; of a bucket with several methods, that of its first parameter."""
    return tuple(methods.index(choice.method_of(bucket[0][0])) for bucket in layout)
