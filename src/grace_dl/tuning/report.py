"""What was chosen and why, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..algebra.auto import Choice
from ..algebra.base import Method
from ..formatting import rate
from ..plan.cluster import Link
from .forecast import Plan
from .timing import StepTiming
from .trial import MARGIN


class Arm(NamedTuple):
    """One of the plans that were compared: its text, its predicted and measured step, and how many turns it had."""

    label: str
    predicted: float
    measured: float
    turns: int


@dataclass(frozen=True)
class Report:
    """The last decision."""

    why: str
    """Why it was time to decide."""
    measured: StepTiming
    """The step with what was in use."""
    used: str
    """What was in use, as text."""
    link: Link
    arms: tuple[Arm, ...] = ()
    """What was tried; the first is what was in use."""
    kept: int = 0
    """The arm that was kept."""

    def text(self) -> str:
        """Several lines."""
        lines = [
            f"Decided because {self.why}. A step with {self.used} took {_seconds(self.measured.seconds)}, of which "
            f"{_seconds(self.measured.tail)} were spent after the last gradient was sent; the link reaches {rate(self.link.bits)}."
        ]
        if not self.arms[1:]:
            return f"{lines[0]}\nNothing else was predicted to pay, so {self.used} stays."
        for arm in (*self.arms[1:], self.arms[0]):
            predicted = "used before" if arm is self.arms[0] else f"predicted {_seconds(arm.predicted)}"
            turns = f"{arm.turns} turn{'s' * (arm.turns > 1)}"
            lines.append(f"  {arm.label}: {predicted}, measured {_seconds(arm.measured)} in {turns}")
        return "\n".join([*lines, self._verdict()])

    def _verdict(self) -> str:
        before, kept = self.arms[0], self.arms[self.kept]
        if kept is before:
            return f"No other was faster by {1 - MARGIN:.0%} or more, so {before.label} stays."
        return f"{kept.label} took {kept.measured / before.measured:.2f} of the time of {before.label}, so it is used."


def label(plan: Plan, methods: Sequence[Method]) -> str:
    """A plan as text.

    >>> import grace_dl as grace
    >>> label((0, 1, 1), (grace.none(), grace.int8()))
    'none for 1 bucket, int8 for 2 buckets'
    """
    counts = {place: plan.count(place) for place in sorted(set(plan))}
    if len(counts) == 1:
        return str(methods[plan[0]])
    return ", ".join(f"{methods[m]} for {n} bucket{'s' * (n > 1)}" for m, n in counts.items())


def heading(choice: Choice, steps: int, changes: int) -> str:
    """The first line of an explanation."""
    return f"auto uses {choice} after {steps} steps and {changes} change{'s' * (changes != 1)} of its choice."


def _seconds(value: float) -> str:
    if math.isnan(value):
        return "unknown"
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"
