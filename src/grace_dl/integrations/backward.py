"""The end of a backward pass, however it ends."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch


class BackwardPass:
    """A backward pass under way; made inside of it.

    `at_end` is called when the pass ends well. If it raises, `at_failure` is called before `backward()` returns, unless
    this object is gone by then.
    """

    def __init__(self, at_end: Callable[[], None], at_failure: Callable[[], None]) -> None:
        # The engine holds the callback as long as the pass lives, and drops it when that is over.
        callback = _Callback(at_end)
        self._watch = weakref.ref(callback, lambda _: at_failure())
        engine = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
        try:
            engine.queue_callback(callback)
        except RuntimeError:  # not inside of one: `DDP.join` runs hooks by itself
            self._held = callback


class _Callback:
    def __init__(self, at_end: Callable[[], None]) -> None:
        self._at_end = at_end

    def __call__(self) -> None:
        self._at_end()
