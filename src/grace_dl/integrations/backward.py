"""The end of a backward pass, however it ends."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch


class BackwardPass:
    """A backward pass under way; made inside of it. `at_end` is called when it ends well, and not when it raises."""

    def __init__(self, at_end: Callable[[], None] = lambda: None) -> None:
        # The engine holds the callback as long as the pass lives: once it is gone, the pass is over.
        callback = _Callback(at_end)
        self._callback = weakref.ref(callback)
        engine = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
        try:
            engine.queue_callback(callback)
        except RuntimeError:  # not inside of one: `DDP.join` runs hooks by itself
            self._held = callback

    @property
    def over(self) -> bool:
        """Whether it has ended or raised."""
        return self._callback() is None


class _Callback:
    def __init__(self, at_end: Callable[[], None]) -> None:
        self._at_end = at_end

    def __call__(self) -> None:
        self._at_end()
