"""How the ranks of a run stay together: the interface that the training loop uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from ..algebra.named import Named
from ..handle import Handle
from ..telemetry import Stats


class Synchronization:
    """Exchanges gradients at every step, or parameters now and then. `model` is what forward passes call."""

    local = False
    """Whether parameters differ between ranks from one exchange to the next."""

    def __init__(self, model: nn.Module) -> None:
        self.model: nn.Module = model
        self._handle: Handle | None = None
        self._before = Stats()

    @contextlib.contextmanager
    def backward_pass(self, number: int) -> Iterator[None]:
        """The context of forward and backward pass `number` of a step."""
        yield

    def stepped(self) -> None:
        """Called after every step of the optimizer, on all ranks."""

    def finish(self) -> None:
        """Called after the last step: all ranks hold the same model from here on."""

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context in which all ranks hold the same parameters."""
        yield

    def epoch(self, epoch: int) -> None:
        """Start an epoch."""

    def common_state(self, optimizer: torch.optim.Optimizer) -> Any:
        """What all ranks must have in common after loading a checkpoint."""
        return [dict(self.model.named_parameters()), optimizer.state_dict()]

    # Records ------------------------------------------------------------------------------------------

    @property
    def stats(self) -> Stats:
        """Totals of this rank since the start of the run, including the time before a resume."""
        return self._before if self._handle is None else self._before + self._handle.stats()

    @property
    def share(self) -> float | None:
        """The current share of elements sent, for methods that have one."""
        method = None if self._handle is None else self._handle.method
        if not isinstance(method, Named) or "ratio" not in {p.name for p in method.info.parameters}:
            return None
        return float(method.get("ratio"))

    def scalars(self) -> dict[str, float]:
        """Further values for the log."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "stats": asdict(self.stats),
            "handle": None if self._handle is None else self._handle.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._handle is not None and state["handle"] is not None:
            self._handle.load_state_dict(state["handle"])
        self._before = Stats(**state["stats"])
