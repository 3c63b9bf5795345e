"""Times of training steps, taken where the driver works."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ..pipeline.bucket import Bucket
from ..pipeline.driver import Router, StepDriver

now = time.perf_counter

Layout = tuple[tuple[tuple[str, tuple[int, ...], torch.dtype], ...], ...]
"""The parameters of every bucket: name, shape and dtype."""


class StepTiming(NamedTuple):
    """One step, or a summary of several."""

    seconds: float
    """From the end of the previous exchange to the end of this one: update, forward and backward included."""
    tail: float
    """From the launch of the last bucket to the end of the exchange: waiting and decoding."""
    ready: tuple[float, ...]
    """When each bucket was complete, from the first on, without the time spent on encoding in between."""


class TimedDriver(StepDriver):
    """A driver that notes when buckets are launched, and tells `on_finish` when a step is complete."""

    def __init__(
        self,
        router: Router,
        step: int,
        on_finish: Callable[[TimedDriver], None],
        *,
        keep_layout: bool = False,
    ) -> None:
        super().__init__(router, step)
        self._on_finish = on_finish
        self._keep_layout = keep_layout
        self._first = self._launched = self._working = 0.0
        self.ready: list[float] = []
        self.layout: list[tuple[tuple[str, tuple[int, ...], torch.dtype], ...]] = []
        self.device = torch.device("cpu")
        self.end = 0.0

    def launch(self, bucket: Bucket) -> None:
        start = now()
        if not self.ready:
            self._first, self.device = start, bucket.device
        self.ready.append(start - self._first - self._working)
        if self._keep_layout:
            self.layout.append(tuple((s.name, tuple(s.view.shape), s.flat.dtype) for s in bucket.segments))
        super().launch(bucket)
        self._launched = now()
        self._working += self._launched - start

    def finish(self, joint: Callable[[bool, bool], bool] | None = None) -> bool:
        finite = super().finish(joint)
        self.end = now()
        self._on_finish(self)
        return finite

    def timing(self, previous: float) -> StepTiming:
        """The times of this step, if the previous one ended at `previous`."""
        return StepTiming(self.end - previous, self.end - (self._launched or self.end), tuple(self.ready))


def summary(steps: Sequence[StepTiming]) -> StepTiming:
    """The median of each figure; of steps with as many buckets as the last.

    >>> summary([StepTiming(1.0, 0.5, (0.0,)), StepTiming(9.0, 0.4, (0.0,)), StepTiming(2.0, 0.6, (0.0,))])
    StepTiming(seconds=2.0, tail=0.5, ready=(0.0,))
    """
    alike = [step for step in steps if len(step.ready) == len(steps[-1].ready)]
    median = statistics.median
    return StepTiming(
        median(step.seconds for step in alike),
        median(step.tail for step in alike),
        tuple(median(times) for times in zip(*(step.ready for step in alike))),
    )


def merged(ranks: Sequence[StepTiming]) -> StepTiming:
    """The step of all ranks: the slowest sets the pace, and the last to arrive waits for the network alone.

    >>> merged([StepTiming(1.0, 0.5, (0.0, 0.1)), StepTiming(1.1, 0.2, (0.0, 0.4))])
    StepTiming(seconds=1.1, tail=0.2, ready=(0.0, 0.4))
    """
    return StepTiming(
        max(rank.seconds for rank in ranks),
        min(rank.tail for rank in ranks),
        tuple(max(times) for times in zip(*(rank.ready for rank in ranks))),
    )
