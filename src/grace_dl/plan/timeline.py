"""A training step as a timeline: what overlaps with the backward pass, and what shows.

The model follows the driver (`pipeline/driver.py`). One thread runs backward and all codec work: encoding a bucket delays
the rest of backward. Collectives run beside it, one after another in the order they are issued; they slow it down if
they need the same cores. A later round of a bucket
is issued when a later bucket is launched and finds the previous round complete, or after backward; on devices, where all
collectives share one order, after backward only. Decoding starts when everything has arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Round(NamedTuple):
    """Codec work before a collective, and the time of the collective, in seconds."""

    work: float
    wire: float
    load: float = 0.0
    """Share of the worker's computing that the collective takes while it runs."""


@dataclass(frozen=True)
class BucketCost:
    """The costs of one bucket."""

    ready: float
    """Seconds of backward until its gradients are complete, without any other work."""
    rounds: Sequence[Round]
    decode: float = 0.0


class Span(NamedTuple):
    """A part of the timeline: what (`backward`, `encode`, `send`, `decode`), which bucket, from when to when."""

    what: str
    bucket: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A simulated backward pass with its exchange; times in seconds from the start of backward."""

    seconds: float
    compute: float
    """The backward pass alone."""
    codec: float
    """Encoding and decoding; all of it shows."""
    wire: float
    """All collectives; what is hidden behind the rest does not show."""
    spans: tuple[Span, ...]

    @property
    def waiting(self) -> float:
        """Time in which the rank only waits for the network, or processes its messages."""
        return max(0.0, self.seconds - self.compute - self.codec)


def simulate(backward: float, buckets: Sequence[BucketCost], one_order: bool = False) -> Timeline:
    """The timeline of buckets in the order in which they become ready; `one_order`: later rounds wait for backward.

    >>> step = simulate(1.0, [BucketCost(0.5, [Round(0.1, 0.2)]), BucketCost(1.0, [Round(0.1, 0.3)], decode=0.1)])
    >>> round(step.seconds, 3), round(step.waiting, 3)
    (1.6, 0.3)
    >>> round(simulate(1.0, [BucketCost(0.5, [Round(0.0, 0.2, load=0.5)])]).seconds, 3)
    1.1
    """
    spans: list[Span] = []
    done = [0] * len(buckets)  # rounds issued
    arrives = [0.0] * len(buckets)
    sends: deque[tuple[float, float, float]] = deque()
    """Start, end and load of the collectives that take a share of computing and have not ended, in order."""
    complete = 0
    """Buckets from the first on whose rounds are all issued."""
    now = codec = link_free = wire = elapsed = 0.0

    def busy(what: str, bucket: int, seconds: float) -> None:
        """Compute for `seconds`, or longer while collectives take their share."""
        nonlocal now
        if seconds <= 0:
            return
        begun = now
        while sends and sends[0][1] <= now:
            sends.popleft()
        for start, end, load in sends:
            free = max(0.0, start - now)
            if seconds <= free:
                break
            seconds, now = seconds - free, now + free
            shared = (end - now) * (1 - load)
            if seconds <= shared:
                seconds, now = 0.0, now + seconds / (1 - load)
                break
            seconds, now = seconds - shared, end
        now += seconds
        spans.append(Span(what, bucket, begun, now))

    def work(what: str, bucket: int, seconds: float) -> None:
        nonlocal codec
        codec += seconds
        busy(what, bucket, seconds)

    def issue(bucket: int) -> None:
        nonlocal link_free, wire
        part = buckets[bucket].rounds[done[bucket]]
        work("encode", bucket, part.work)
        start = max(now, link_free)
        link_free = arrives[bucket] = start + part.wire
        wire += part.wire
        if part.load > 0:
            sends.append((start, link_free, part.load))
        if part.wire > 0:
            spans.append(Span("send", bucket, start, link_free))
        done[bucket] += 1

    for place, bucket in enumerate(buckets):
        computing = max(0.0, min(bucket.ready, backward) - elapsed)
        busy("backward", place, computing)
        elapsed += computing
        if bucket.rounds:
            issue(place)
        while complete < place and done[complete] == len(buckets[complete].rounds):
            complete += 1
        for earlier in range(complete, complete if one_order else place):
            while done[earlier] < len(buckets[earlier].rounds) and arrives[earlier] <= now:
                if (
                    earlier
                    and done[earlier - 1] <= done[earlier]
                    and done[earlier - 1] < len(buckets[earlier - 1].rounds)
                ):
                    break  # rounds go out in bucket order
                issue(earlier)
    busy("backward", len(buckets), backward - elapsed)
    while any(done[place] < len(bucket.rounds) for place, bucket in enumerate(buckets)):
        for place, bucket in enumerate(buckets):
            if done[place] < len(bucket.rounds):
                now = max(now, arrives[place])
                issue(place)
    now = max([now, *arrives])
    for place, bucket in enumerate(buckets):
        work("decode", place, bucket.decode)
    return Timeline(now, backward, codec, wire, tuple(spans))
