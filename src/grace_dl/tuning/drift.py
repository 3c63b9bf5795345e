"""When to look again: steps take longer or shorter than when the choice was made, or the link has changed."""

from __future__ import annotations

from .timing import StepTiming

TOLERANCE = 0.2
"""Relative change of step times that is put down to noise."""
MOST_TOLERANCE = 0.6
WIDER = 1.5
"""How much wider the tolerance gets after a look that changed nothing."""
OTHER_LINK = 3.0
"""Factor by which the rate of the link must change; a short probe is not more exact."""


def drift(before: StepTiming, after: StepTiming, tolerance: float = TOLERANCE) -> str | None:
    """What has changed between two summaries of steps, in words; None if nothing has.

    >>> drift(StepTiming(0.1, 0.01, ()), StepTiming(0.2, 0.11, ()))
    'steps took 2.00 × as long as before'
    >>> drift(StepTiming(0.1, 0.04, ()), StepTiming(0.09, 0.01, ()))
    'steps waited 0.030 s less than before'
    >>> drift(StepTiming(0.1, 0.01, ()), StepTiming(0.11, 0.01, ()))
    """
    ratio = after.seconds / before.seconds
    if not 1 / (1 + tolerance) <= ratio <= 1 + tolerance:
        return f"steps took {ratio:.2f} × as long as before"
    waited = after.tail - before.tail
    if abs(waited) > tolerance * before.seconds:
        return f"steps waited {abs(waited):.3f} s {'longer' if waited > 0 else 'less'} than before"
    return None


def link_drift(before: float, after: float) -> str | None:
    """Whether the rate of a link, in bits per second, has changed, in words.

    >>> link_drift(1e8, 1e10), link_drift(1e8, 2e8)
    ('the link became 100 × as fast', None)
    """
    if after > OTHER_LINK * before:
        return f"the link became {after / before:.3g} × as fast"
    if after < before / OTHER_LINK:
        return f"the link became {before / after:.3g} × as slow"
    return None


def wider(tolerance: float) -> float:
    """The tolerance after a look that changed nothing: what drifted was noise, or did not matter."""
    return min(MOST_TOLERANCE, WIDER * tolerance)
