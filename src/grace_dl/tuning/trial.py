"""How plans are compared in turns: which ones, for how long, and which is kept."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .forecast import Plan

TURN = 3
"""Steps of a turn that are measured, after one that is not: it pays what is owed and builds buffers."""
MOST_CANDIDATES = 5
"""Enough for all methods that are allowed by default and a mixture of them."""
PLAUSIBLE = 1.4
"""Candidates are tried if their predicted step takes at most this much of the present one: one prediction in ten is off by as much."""
DECISIVE = (1.5, 1.15)
"""An arm that took this much longer than the best gets no second turn, or no third."""
FINALISTS = 3
"""Arms of the second and third round, at most."""
MARGIN = 0.97
"""A candidate replaces what is in use if its step takes at most this part of the time."""


def candidates(
    ranked: Sequence[tuple[float, Plan]], current: Plan, seconds: float, limit: float = PLAUSIBLE
) -> list[tuple[float, Plan]]:
    """The plans to try: those not in use that may pay, the most promising first.

    >>> candidates([(0.5, (1,)), (1.0, (0,)), (1.2, (2,)), (2.0, (3,))], current=(0,), seconds=1.0)
    [(0.5, (1,)), (1.2, (2,))]
    """
    may_pay = [
        (predicted, plan)
        for predicted, plan in ranked
        if plan != current and (math.isnan(predicted) or predicted <= limit * seconds)
    ]
    return may_pay[:MOST_CANDIDATES]


@dataclass
class Trial:
    """Plans that take turns, the one in use first; `taken` are the medians of the turns that each has had."""

    plans: list[Plan]
    predicted: list[float]
    taken: list[list[float]]
    queue: list[int] = field(default_factory=list)
    """Arms that are to have a turn in this round."""
    rounds: int = 1

    @classmethod
    def of(cls, current: Plan, seconds: float, tried: Sequence[tuple[float, Plan]]) -> Trial:
        """The first round: the plan in use has just been measured, so the candidates come next."""
        arms = range(1, len(tried) + 1)
        return cls(
            [current, *(plan for _, plan in tried)],
            [seconds, *(predicted for predicted, _ in tried)],
            [[seconds], *([] for _ in arms)],
            list(arms),
        )

    def next_round(self) -> bool:
        """Start the second or third round if it is needed; False if the trial is over."""
        if self.rounds > len(DECISIVE):
            return False
        left = survivors(
            [
                seconds if len(turns) == self.rounds else math.inf
                for seconds, turns in zip(self.outcome(), self.taken)
            ],
            DECISIVE[self.rounds - 1],
        )
        if len(left) == 1:
            return False
        self.rounds += 1
        self.queue = left
        return True

    def outcome(self) -> list[float]:
        """The step time of each arm."""
        return [statistics.median(turns) for turns in self.taken]

    def winner(self, plain: Plan) -> int:
        """The arm to keep."""
        seconds = self.outcome()
        done = {arm: seconds[arm] for arm, turns in enumerate(self.taken) if len(turns) == self.rounds}
        return winner(done, self.plans.index(plain) if plain in self.plans else None)


def survivors(seconds: Sequence[float], decisive: float = DECISIVE[0]) -> list[int]:
    """The arms of the next round: what is in use (arm 0) and the best others, unless the best has won already.

    >>> survivors([1.0, 0.9, 0.8, 0.7, 3.0]), survivors([5.0, 0.1, 0.3])
    ([0, 2, 3], [1])
    """
    best = min(seconds)
    near = [arm for arm, took in enumerate(seconds) if took <= decisive * best]
    return sorted(sorted(near, key=lambda arm: (arm != 0, seconds[arm], arm))[:FINALISTS])


def winner(seconds: Mapping[int, float], plain: int | None = None) -> int:
    """The arm to keep: the fastest, but what is in use (arm 0) stays unless another is faster by a margin.

    Plain averaging replaces a method that does not pay without any margin.

    >>> winner({0: 1.0, 1: 0.99}), winner({0: 1.0, 1: 0.9, 2: 0.8}), winner({0: 1.0, 1: 0.99, 2: 0.98}, plain=1)
    (0, 2, 1)
    """
    best = min(seconds, key=lambda arm: (seconds[arm], arm))
    if 0 not in seconds or seconds[best] <= MARGIN * seconds[0]:
        return best
    return plain if plain is not None and seconds.get(plain, math.inf) < seconds[0] else 0
