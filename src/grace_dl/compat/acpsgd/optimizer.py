"""An optimizer whose gradients are averaged over workers, low-rank compressed, while backward runs."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..communicator.base import Communicator
from ..compressor.lowrank import LowRankCompressor
from ..dist.optimizer import named
from ..errors import ConfigError
from ..helper import grace_from_params
from ..pipeline.reducer import Reducer
from ..registry import unknown
from ..telemetry import Stats
from . import world
from .state import foreign

METHODS = {"acpsgd": "acpsgd", "powersgd": "powersgd", "ssgd": "none"}
"""What `method` may be, and the compression it stands for."""


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    rank: int = 4,
    threshold: float = 25,
    *,
    method: str = "acpsgd",
    backward_passes_per_step: int = 1,
    scaler: Any = None,
    **settings: Any,
) -> Any:
    """Makes `optimizer` average its gradients over all workers; returns it, a subclass of its own class from now on.

    Buckets are sized by what is sent: each holds the factors of about `threshold` MB of gradients (0: every tensor on
    its own), and leaves as soon as backward has reached all of it. `backward_passes_per_step`: passes that add up
    locally before they are exchanged. `scaler`: the GradScaler in use, so that residuals follow its changes of scale.
    Further settings are those of `grace_from_params` (`min_compression_rate`, `start_iter`, `seed`, ...).

    >>> import torch
    >>> model = torch.nn.Linear(64, 64)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> optimizer = DistributedOptimizer(optimizer, model.named_parameters(), rank=2)
    >>> model(torch.ones(1, 64)).sum().backward()
    >>> optimizer.step()
    >>> optimizer.stats().steps
    1
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if not 0 <= threshold < math.inf:
        raise ConfigError(
            f"threshold={threshold!r} must be a number of megabytes; 25 is usual, 0 fuses nothing."
        )
    if isinstance(optimizer, _Distributed):
        raise ConfigError("this optimizer is a DistributedOptimizer already; wrap the plain one.")
    if backward_passes_per_step < 1:
        raise ConfigError(f"backward_passes_per_step={backward_passes_per_step} must be 1 or more.")
    if not world.is_initialized():
        world.init()
    if method != "ssgd":
        settings["rank"] = rank
    communicator = grace_from_params({"compressor": METHODS[method], **settings})
    # Opened here, where all workers come together: loading a checkpoint on some of them must not.
    communicator.transport  # noqa: B018
    names = named(optimizer, named_parameters)
    # The object itself changes class, so that schedulers and scalers that know it go on working; a scheduler has put
    # its own `step` there, which would lead past ours.
    vars(optimizer).pop("step", None)
    optimizer.__class__ = type(type(optimizer).__name__, (_Distributed, type(optimizer)), {})
    assert isinstance(optimizer, _Distributed)
    optimizer._take_up(communicator, names, threshold, backward_passes_per_step, scaler)
    return optimizer


class _Distributed(torch.optim.Optimizer):
    """What `DistributedOptimizer` puts in front of an optimizer's own class."""

    communicator: Communicator

    def _take_up(
        self,
        communicator: Communicator,
        names: list[tuple[str, Tensor]],
        threshold: float,
        passes: int,
        scaler: Any,
    ) -> None:
        self.communicator = communicator
        self._names = names
        self._threshold = threshold
        self._scaler = scaler
        self._build(passes)

    def _build(self, passes: int) -> None:
        weigh, limit = _buckets(self.communicator, [p for _, p in self._names], self._threshold)
        self._trained = [p.requires_grad for _, p in self._names]
        self._reducer = _Reducer(
            self._names,
            self.communicator,
            bucket_bytes=limit,
            passes=passes,
            weigh=weigh,
            scaler=self._scaler,
        )

    # What training loops call -------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step with the averaged gradients; what backward has not exchanged is exchanged first."""
        if closure is None:
            # Passes that were promised but did not come, or a backward that reached nothing here but may elsewhere.
            if self._reducer.unfinished or not self._reducer.settled:
                self._reducer.finish()
            self._check_trained()
            loss = super().step()
        else:
            loss = super().step(closure)
        self._reducer.settled = False
        self._opt_called = True
        return loss

    # The class below runs the step hooks; torch would otherwise wrap this one too, and run them twice. Schedulers wrap
    # `step` to see the order of calls, which `_opt_called` tells.
    step.hooked = step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients; also the time at which layers frozen or thawed meanwhile are noticed."""
        self._reducer.forget_broken()
        if [p.requires_grad for _, p in self._names] != self._trained and not self._reducer.unfinished:
            passes = self._reducer.passes
            self._reducer.close()
            self._build(passes)
        super().zero_grad(set_to_none)

    def synchronize(self) -> None:
        """Exchange now what backward passes of an unfinished step have left, for clipping before `step`."""
        if self._reducer.unfinished:
            self._reducer.finish()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, backward passes only add up locally; the first one after it exchanges the sum."""
        before, self._reducer.enabled = self._reducer.enabled, False
        try:
            yield
        finally:
            self._reducer.enabled = before

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take in more parameters; they are named by their place."""
        super().add_param_group(param_group)
        if "_reducer" not in vars(self):
            return
        place = len(self.param_groups) - 1
        added = [(f"group{place}.{i}", p) for i, p in enumerate(self.param_groups[-1]["params"])]
        self._names = [*self._names, *added]
        passes = self._reducer.passes
        self._reducer.close()
        self._build(passes)

    def stats(self) -> Stats:
        """Bytes, collectives and seconds so far, of this worker."""
        return self.communicator.stats.copy()

    def close(self) -> None:
        """Leave the gradients alone from now on."""
        self._reducer.close()

    # Checkpoints --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own, and under "grace" the factors, residuals and counters of this worker."""
        return {**super().state_dict(), "grace": self.communicator.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from `state_dict`. From another worker's, all but the residuals is taken, with a warning."""
        own = {key: value for key, value in state_dict.items() if key != "grace"}
        saved = state_dict.get("grace")
        if saved is not None:
            here = (self.communicator.transport.rank, self.communicator.transport.size)
            if (saved["rank"], saved["world_size"]) != here:
                warnings.warn(
                    f"this is the checkpoint of worker {saved['rank']} of {saved['world_size']}, loaded on worker "
                    f"{here[0]} of {here[1]}: residuals start from zero here. Save and load one per worker to go on "
                    "exactly.",
                    stacklevel=2,
                )
                saved = foreign(saved, *here)
            self.communicator.load_state_dict(saved)
        super().load_state_dict(own)

    def _check_trained(self) -> None:
        for (name, parameter), trained in zip(self._names, self._trained):
            if parameter.requires_grad and not trained and parameter.grad is not None:
                raise ConfigError(
                    f"{name!r} was frozen when gradients were last cleared and has one now, which no other worker "
                    "knows; call optimizer.zero_grad() after requires_grad_(), before backward."
                )


class _Reducer(Reducer):
    """Knows whether a step's gradients have been exchanged, and recovers from a backward pass that broke off."""

    settled = False

    def finish(self) -> bool:
        self._in_backward = False
        finite = super().finish()
        self.settled = True
        return finite

    def forget_broken(self) -> None:
        """Outside backward, a pass still under way is one that raised: its exchange is given up."""
        if self._in_backward and torch._C._current_graph_task_id() == -1:
            if self._exchange is not None:
                self._exchange.discard()
            self._exchange = None
            self._in_backward = False
            self._launched = self._passed = 0
            self._used.clear()


def _buckets(
    communicator: Communicator, parameters: list[Tensor], threshold: float
) -> tuple[Callable[[Tensor], int], int]:
    """How much a parameter weighs in a bucket, and how much a bucket holds: both in bytes sent (Zhang 2023, IV.C).

    A bucket holds the compressed form of `threshold` MB of gradients on average: smaller ones would cost latency,
    larger ones would leave late and overlap with nothing.
    """
    method = communicator.compressor

    def weigh(parameter: Tensor) -> int:
        if not isinstance(method, LowRankCompressor) or not method.fits(parameter.shape):
            return parameter.nbytes
        sizes = [
            method.payload_bytes_of(parameter.shape, parameter.dtype, method.start_iter + step)
            for step in (0, 1)
        ]
        return sum(sizes) // 2

    dense = sum(p.nbytes for p in parameters) or 1
    sent = sum(weigh(p) for p in parameters)
    return weigh, max(1, round(threshold * 2**20 * sent / dense))
