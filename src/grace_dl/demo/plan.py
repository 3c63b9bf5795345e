"""What the demo runs, and what it records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..algebra.text import parse
from ..bench.selection import DDP, select

LEARNING_RATE = 0.05
MOMENTUM = 0.9

METHODS = ("fp16", "int4", "efsignsgd", "signum", "powersgd:4", "topk:0.01", "dgc:0.005")
"""The default methods: about one of each family, by decreasing bytes on the wire."""

_OWN_MOMENTUM = ("dgc", "signum")
"""Methods that apply momentum themselves, so the optimizer must not."""
_RATES = {"signum": 0.0005}
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
    rates = [rate for name, rate in _RATES.items() if name in used]
    return Run(method, 0.0 if used & {*_OWN_MOMENTUM} else MOMENTUM, *rates[:1])


@dataclass
class Point:
    """One evaluation during training."""

    step: int
    seconds: float
    """Training time so far, without evaluations."""
    megabytes: float
    """Bytes sent by one worker so far."""
    accuracy: float


@dataclass
class Result:
    """What one training achieved, measured on rank 0."""

    method: str
    steps: int
    parameters: int
    accuracy: float
    sent_per_step: float
    """Bytes leaving one worker each step."""
    payload_per_step: float
    """Bytes one worker passes to collectives each step."""
    dense_per_step: float
    """Bytes of the gradients."""
    step_ms: float
    """Median over the steps."""
    seconds: float
    points: list[Point] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """How many times smaller the payload is than the gradients."""
        return self.dense_per_step / self.payload_per_step


@dataclass(frozen=True)
class Settings:
    """Settings shared by all runs of a demo."""

    data: str = "fashion-mnist"
    epochs: float = 1.0
    batch: int = 64
    """Images per worker and step."""
    workers: int = 2
    evaluations: int = 10
    """How often the model is evaluated during a run."""
