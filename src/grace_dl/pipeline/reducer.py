"""Gradients of plain parameters, exchanged while backward runs: for engines that bring no buckets of their own.

Parameters are put in buckets once, last first, as backward tends to reach them. A bucket is sent when backward has
reached all of it and every bucket before it was sent, so that all ranks send in one order; when a backward pass ends, the
rest is sent, everything is decoded, and each `.grad` holds the result by the time `backward()` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import ConfigError, GraceError
from .bucket import Bucket, Segment, check
from .exchange import Exchange

if TYPE_CHECKING:
    from ..communicator.base import Communicator

BUCKET_BYTES = 25 * 2**20


class Reducer:
    """Keeps `.grad` of the given parameters averaged over ranks after every backward pass.

    `passes`: how many backward passes make one step; gradients add up locally and are exchanged after the last.
    `weigh`: bytes a parameter counts for when buckets are filled (its own size, if not given).
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        communicator: Communicator,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        passes: int = 1,
        weigh: Callable[[Tensor], int] | None = None,
        scaler: Any = None,
    ) -> None:
        if passes < 1:
            raise ConfigError(f"{passes} backward passes per step make no sense: give 1 or more.")
        self.communicator = communicator
        self.passes = passes
        self._scaler = scaler
        self._names: dict[int, str] = {}
        parameters = []
        for name, parameter in named_parameters:
            if parameter.requires_grad and id(parameter) not in self._names:
                self._names[id(parameter)] = name
                parameters.append(parameter)
        names = list(self._names.values())
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(
                f"two parameters are named {twice!r}; state is kept by name, so names must differ."
            )
        self._buckets = _fill(parameters[::-1], bucket_bytes, weigh or (lambda p: p.nbytes))
        self._place = {id(p): place for place, bucket in enumerate(self._buckets) for p in bucket}
        self._hooks = [p.register_post_accumulate_grad_hook(self._reached) for p in parameters]
        self._used: set[int] = set()
        self._blank: list[tuple[Tensor, Segment]] = []
        self._missing: list[int] = []
        self._exchange: Exchange | None = None
        self._launched = 0
        self._passed = 0
        self._in_backward = False
        self.enabled = True

    @property
    def unfinished(self) -> bool:
        """Whether backward passes of a step have come, but not all of them."""
        return self._passed > 0

    def close(self) -> None:
        """Leave the parameters alone from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # During backward ----------------------------------------------------------------------------------

    def _reached(self, parameter: Tensor) -> None:
        self._used.add(id(parameter))
        if not self.enabled:
            return
        if not self._in_backward:
            self._in_backward = True
            self._missing = [len(bucket) for bucket in self._buckets]
            torch.autograd.Variable._execution_engine.queue_callback(self._ended)  # type: ignore[attr-defined]
        place = self._place[id(parameter)]
        if place < self._launched:
            raise GraceError(
                f"backward reached {self._names[id(parameter)]!r} twice in one pass, after it was sent; use "
                "non-reentrant checkpointing (use_reentrant=False)."
            )
        self._missing[place] -= 1
        if self._passed + 1 == self.passes:
            while self._launched < len(self._buckets) and self._missing[self._launched] == 0:
                self._launch()

    def _ended(self) -> None:
        self._in_backward = False
        self._passed += 1
        if self._passed >= self.passes:
            self.finish()

    def finish(self) -> bool:
        """Send what has not been sent, and put the results in place. False where a gradient was not finite."""
        self._passed = 0
        try:
            while self._launched < len(self._buckets):
                self._launch()
            finite = self._exchange.finish() if self._exchange is not None else True
            for parameter, segment in self._blank:
                # Reached on no rank: without a gradient, so that optimizers leave it alone.
                if not segment.used:
                    parameter.grad = None
            return finite
        except BaseException:
            if self._exchange is not None:
                self._exchange.discard()
            raise
        finally:
            self._exchange = None
            self._launched = 0
            self._used.clear()
            self._blank.clear()

    def _launch(self) -> None:
        if self._exchange is None:
            if self._scaler is not None:
                self.communicator.set_loss_scale(float(self._scaler.get_scale()))
            self._exchange = Exchange(self.communicator)
        place = self._launched
        segments = [self._segment(parameter) for parameter in self._buckets[place]]
        self._launched += 1
        self._exchange.launch(Bucket(("parameters", id(self), place), segments))

    def _segment(self, parameter: Tensor) -> Segment:
        name, grad = self._names[id(parameter)], parameter.grad
        blank = grad is None
        if grad is None:
            parameter.grad = grad = torch.zeros_like(parameter)
        check(grad, name)
        if grad.requires_grad:
            grad = grad.detach()
        if grad.is_contiguous():
            flat = grad if grad.dim() == 1 else grad.view(-1)
        else:
            if not _dense(grad):
                parameter.grad = grad = grad.contiguous()
            flat = grad.as_strided((grad.numel(),), (1,))
        segment = Segment(name, flat, grad, id(parameter) in self._used)
        if blank:
            self._blank.append((parameter, segment))
        return segment


def _dense(tensor: Tensor) -> bool:
    """Whether a tensor's elements fill its memory without gaps, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _fill(parameters: list[Tensor], limit: int, weigh: Callable[[Tensor], int]) -> list[list[Tensor]]:
    """Parameters in buckets of one dtype and device, each up to `limit` bytes, in the order given."""
    buckets: list[list[Tensor]] = []
    open_: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], int]] = {}
    for parameter in parameters:
        kind = (parameter.dtype, parameter.device)
        bucket, weight = open_.get(kind, ([], 0))
        if not bucket:
            buckets.append(bucket)
        bucket.append(parameter)
        weight += weigh(parameter)
        open_[kind] = ([], 0) if weight >= limit else (bucket, weight)
    return buckets
