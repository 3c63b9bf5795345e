"""Events that a trainer passes to its `report` function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """A message for the user."""

    text: str


@dataclass(frozen=True)
class Started:
    """Training starts; a resumed run has completed `done` of `total` steps."""

    done: int
    total: int


@dataclass(frozen=True)
class StepDone:
    """A step is complete. Loss and accuracy are this rank's, averaged since the last log record."""

    step: int
    epoch: int
    loss: float
    accuracy: float
    samples_per_second: float
    sent_bytes: int


@dataclass(frozen=True)
class Evaluated:
    """The model was evaluated at the end of an epoch. Metrics are those of all ranks."""

    step: int
    epoch: int
    metrics: Mapping[str, float]
    sent_bytes: int


Event = Message | Started | StepDone | Evaluated
Report = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Report nothing."""


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Metrics on one line.

    >>> format_metrics({"loss/test": 0.5, "acc/test_top1": 0.9})
    'loss/test 0.5000  acc/test_top1 0.9000'
    """
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
