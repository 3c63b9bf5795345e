"""What the demo runs, and what it records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..algebra.text import parse
from ..bench.selection import DDP, select
from ..bench.virtual_hosts import LOOPBACK

LEARNING_RATE = 0.05
MOMENTUM = 0.9

METHODS = ("int4", "powersgd:4", "topk:0.01")
"""The default methods: a quantizer, low rank and a sparsifier, by decreasing bytes on the wire."""

RATES = (LOOPBACK, "100mbit", "1gbit")
"""The default networks."""

_OWN_MOMENTUM = ("dgc", "signum")
"""Methods that apply momentum themselves, so the optimizer must not."""
_LEARNING_RATES = {"signum": 0.0005}
"""Learning rates that differ. The result of signum is ±1 by vote, so its rate is the size of every weight's step."""


@dataclass(frozen=True)
class Run:
    """One training: a method or the baseline `ddp`, and the momentum and learning rate of the optimizer.

    All train with the same rate and momentum unless the method needs others; none of them is tuned.
    """

    method: str
    momentum: float = MOMENTUM
    rate: float = LEARNING_RATE


def runs(methods: Sequence[str] | None = None) -> list[Run]:
    """The baseline, then the methods as named on a command line.

    >>> runs(["topk:0.1"])
    [Run(method='ddp', momentum=0.9, rate=0.05), Run(method='topk:0.1', momentum=0.9, rate=0.05)]
    """
    return [_run(method) for method in select(methods, default=METHODS, beside=[DDP])]


def _run(method: str) -> Run:
    if method == DDP:
        return Run(method)
    used = {getattr(part, "name", "") for part in parse(method).parts()}
    rates = [rate for name, rate in _LEARNING_RATES.items() if name in used]
    return Run(method, 0.0 if used & {*_OWN_MOMENTUM} else MOMENTUM, *rates[:1])


@dataclass(frozen=True)
class Settings:
    """Settings shared by all runs of a demo."""

    task: str = "fashion-mnist"
    epochs: float = 1.0
    batch_size: int = 64
    """Images per worker and step."""
    workers: int = 2
    rates: Sequence[str] = RATES
    """The networks. On the first one every method trains to the end; on the others its steps are timed."""
    seconds: float = 15.0
    """Training time of each method on each network after the first."""
    evaluations: int = 6
    """How often the model is evaluated during a run."""


@dataclass
class Point:
    """One evaluation during training."""

    step: int
    seconds: float
    """Training time until then, at the median pace."""
    accuracy: float


@dataclass
class Result:
    """What one training achieved on one network, measured on rank 0."""

    method: str
    network: str
    steps: int
    """Steps of the whole training."""
    timed: int
    """Steps that were trained here; 0 if the step time is an estimate."""
    parameters: int
    sent_per_step: float
    """Bytes leaving one worker each step."""
    dense_per_step: float
    """Bytes of the gradients."""
    step_seconds: float
    """Median over the steps."""
    accuracy: float = math.nan
    """After the whole training. The network does not change it, so it is that of the first network."""
    digest: str = ""
    """Of the parameters after a few steps, to check that."""
    points: list[Point] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Time of the whole training: all steps at the median pace, so that a slow first step does not count."""
        return self.steps * self.step_seconds

    @property
    def ratio(self) -> float:
        """How many times fewer bytes leave a worker than the gradients have."""
        return self.dense_per_step / self.sent_per_step if self.sent_per_step else 1.0

    def with_accuracy_of(self, first: Result) -> None:
        """Take accuracy and curve from the same training on the first network, at this network's pace."""
        self.accuracy = first.accuracy
        self.points = self.paced([(p.step, p.accuracy) for p in first.points])

    def paced(self, evaluations: Sequence[tuple[int, float]]) -> list[Point]:
        """Evaluations by step, at this network's pace."""
        return [Point(step, step * self.step_seconds, accuracy) for step, accuracy in evaluations]
