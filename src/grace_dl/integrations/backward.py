"""Callbacks for the end of a backward pass, successful or not."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

FAILED = "its backward pass raised an error"
"""Why a rank leaves a step."""


class BackwardPass:
    """A backward pass in progress. Create it from within the pass.

    `at_end` is called when the pass succeeds. If the pass raises, `at_failure` is called before `backward()` returns,
    unless this object has been deleted by then.
    """

    def __init__(self, at_end: Callable[[], None], at_failure: Callable[[], None]) -> None:
        # The engine holds a reference to the callback for the duration of the pass.
        callback = _Callback(at_end)
        self._watch = weakref.ref(callback, lambda _: at_failure())
        engine = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
        try:
            engine.queue_callback(callback)
        except RuntimeError:  # not inside a backward pass: `DDP.join` runs hooks itself
            self._held = callback


class _Callback:
    def __init__(self, at_end: Callable[[], None]) -> None:
        self._at_end = at_end

    def __call__(self) -> None:
        self._at_end()
