"""A training step as a timeline: what overlaps with the backward pass, and what shows.

The model follows the driver (`pipeline/driver.py`). One thread runs backward and all codec work: encoding a bucket delays
the rest of backward. Collectives run beside it, one after another in the order they are issued. A later round of a bucket
is issued when a later bucket is launched and finds the previous round complete, or after backward; on devices, where all
collectives share one order, after backward only. Decoding starts when everything has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Round(NamedTuple):
    """Codec work before a collective, and the time of the collective, in seconds."""

    work: float
    wire: float


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
        """Time in which the rank only waits for the network."""
        return max(0.0, self.seconds - self.compute - self.codec)


def simulate(backward: float, buckets: Sequence[BucketCost], one_order: bool = False) -> Timeline:
    """The timeline of buckets in the order in which they become ready; `one_order`: later rounds wait for backward.

    >>> step = simulate(1.0, [BucketCost(0.5, [Round(0.1, 0.2)]), BucketCost(1.0, [Round(0.1, 0.3)], decode=0.1)])
    >>> round(step.seconds, 3), round(step.waiting, 3)
    (1.6, 0.3)
    """
    spans: list[Span] = []
    done = [0] * len(buckets)  # rounds issued
    arrives = [0.0] * len(buckets)
    now = codec = link_free = wire = elapsed = 0.0

    def work(what: str, bucket: int, seconds: float) -> None:
        nonlocal now, codec
        if seconds > 0:
            spans.append(Span(what, bucket, now, now + seconds))
            codec += seconds
            now += seconds

    def issue(bucket: int) -> None:
        nonlocal link_free, wire
        part = buckets[bucket].rounds[done[bucket]]
        work("encode", bucket, part.work)
        start = max(now, link_free)
        link_free = arrives[bucket] = start + part.wire
        wire += part.wire
        if part.wire > 0:
            spans.append(Span("send", bucket, start, link_free))
        done[bucket] += 1

    for place, bucket in enumerate(buckets):
        computing = max(0.0, min(bucket.ready, backward) - elapsed)
        if computing > 0:
            spans.append(Span("backward", place, now, now + computing))
        now += computing
        elapsed += computing
        if bucket.rounds:
            issue(place)
        for earlier in range(0 if one_order else place):
            while done[earlier] < len(buckets[earlier].rounds) and arrives[earlier] <= now:
                if (
                    earlier
                    and done[earlier - 1] <= done[earlier]
                    and done[earlier - 1] < len(buckets[earlier - 1].rounds)
                ):
                    break  # rounds go out in bucket order
                issue(earlier)
    if backward > elapsed:
        spans.append(Span("backward", len(buckets), now, now + backward - elapsed))
        now += backward - elapsed
    while any(done[place] < len(bucket.rounds) for place, bucket in enumerate(buckets)):
        for place, bucket in enumerate(buckets):
            if done[place] < len(bucket.rounds):
                now = max(now, arrives[place])
                issue(place)
    now = max([now, *arrives])
    for place, bucket in enumerate(buckets):
        work("decode", place, bucket.decode)
    return Timeline(now, backward, codec, wire, tuple(spans))
