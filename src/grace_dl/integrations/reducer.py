"""Exchange gradients of plain parameters while backward runs, for optimizers, which have no buckets.

Parameters are bucketed in reverse order, as backward tends to reach them. A bucket is sent when backward has reached all
of it and every earlier bucket was sent, so that all ranks send in the same order. When a backward pass ends, the rest is
sent, everything is decoded, and each `.grad` holds the result by the time `backward()` returns.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import settings
from ..errors import ConfigError, GraceError
from ..pipeline.bucket import Bucket, Segment, check, fill
from ..pipeline.driver import StepDriver
from ..session import Session
from .backward import FAILED, BackwardPass

BUCKET_BYTES = 25 * 2**20


@dataclass
class Options:
    """How gradients are collected."""

    passes: int = 1
    """Backward passes per step; gradients are accumulated locally and exchanged after the last."""
    bucket_bytes: int = BUCKET_BYTES
    weigh: Callable[[Tensor], int] | None = None
    """Bytes that a parameter contributes to a bucket; by default its own size."""
    scaler: Any = None
    """The GradScaler in use."""
    sum: bool = False
    """Return the sum over ranks instead of the average."""
    sparse_as_dense: bool = False
    """Exchange sparse gradients as dense ones, and convert the results back to sparse."""

    def __post_init__(self) -> None:
        settings.passes(self.passes, "backward_passes")


class Reducer:
    """Keeps `.grad` of parameters averaged over ranks after every backward pass.

    `named` lists the parameters. It is called at every step, so parameters may be added, frozen and unfrozen.
    """

    def __init__(
        self, session: Session, named: Callable[[], Iterable[tuple[str, Tensor]]], options: Options
    ) -> None:
        self.options = options
        self.enabled = True
        """False while backward passes only accumulate locally."""
        self.settled = False
        """Whether the gradients of the next optimizer step have been exchanged."""
        self._session = session
        self._named = named
        self._generations = itertools.count()
        self._names: dict[Tensor, str] = {}
        self._place: dict[Tensor, int] = {}
        self._buckets: list[list[Tensor]] = []
        self._hooks: dict[Tensor, Any] = {}
        self._pass: BackwardPass | None = None
        self._used: set[Tensor] = set()
        self._sent: list[tuple[Tensor, Segment]] = []
        self._blank: set[Tensor] = set()
        """Parameters without a gradient, for which zeros were sent."""
        self._sparse: list[Tensor] = []
        self._missing: list[int] = []
        self._driver: StepDriver | None = None
        self._launched = 0
        self._passed = 0
        self._refresh()

    @property
    def unfinished(self) -> bool:
        """Whether some, but not all, backward passes of a step have run."""
        return self._passed > 0

    @property
    def busy(self) -> bool:
        """Whether a step is in progress."""
        return self._driver is not None

    def close(self) -> None:
        """Remove all hooks from the parameters."""
        self.give_up()
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    # Which parameters ---------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Rebuild buckets if parameters were added, frozen or unfrozen."""
        names = {p: name for name, p in self._named() if p.requires_grad}
        if names == self._names:
            return
        if len(set(names.values())) != len(names):
            listed = list(names.values())
            twice = next(name for name in listed if listed.count(name) > 1)
            raise ConfigError(
                f"two parameters are named {twice!r}; state is kept by name, so names must differ."
            )
        for parameter in self._hooks.keys() - names.keys():
            self._hooks.pop(parameter).remove()
        for parameter in names:
            if parameter not in self._hooks:
                self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(_weak(self._reached))
                self._use_unseen(parameter)
        self._names = names
        self.refill()

    def _use_unseen(self, parameter: Tensor) -> None:
        """Mark a parameter that the current pass may have reached before its hook was registered."""
        if parameter.grad is not None:
            self._used.add(parameter)

    def refill(self) -> None:
        """Rebuild the buckets."""
        self._buckets = self._filled(list(self._names)[::-1])
        self._place = {p: place for place, bucket in enumerate(self._buckets) for p in bucket}
        self._generation = next(self._generations)
        self._session.forget_buckets()

    def _filled(self, parameters: list[Tensor]) -> list[list[Tensor]]:
        weigh = self.options.weigh or (lambda p: p.nbytes)
        return fill(parameters, self.options.bucket_bytes, lambda p: (p.dtype, p.device), weigh)

    # During backward ----------------------------------------------------------------------------------

    def _reached(self, parameter: Tensor) -> None:
        self.settled = False
        self._used.add(parameter)
        if not self.enabled:
            return
        if self._pass is None:
            self._begin_pass()
        place = self._place.get(parameter)
        if place is None:  # it left the optimizer, or the optimizer is gone
            return
        if place < self._launched:
            raise GraceError(
                f"backward reached {self._names[parameter]!r} twice in one pass, after it was sent; use "
                "non-reentrant checkpointing (use_reentrant=False)."
            )
        self._missing[place] -= 1
        if self._passed + 1 == self.options.passes:
            while self._launched < len(self._buckets) and self._missing[self._launched] == 0:
                self._launch(self._buckets[self._launched])

    def _begin_pass(self) -> None:
        if self._passed == 0:
            self._refresh()
        self._missing = [len(bucket) for bucket in self._buckets]
        self._pass = BackwardPass(self._end_pass, self._pass_failed)

    def _end_pass(self) -> None:
        self._pass = None
        self._passed += 1
        if self._passed >= self.options.passes:
            self.finish()

    def _pass_failed(self) -> None:
        # Immediately, while the gradients are still those that were encoded.
        if self._driver is not None:
            self._driver.abandon(FAILED)
        self._reset()

    def finish(self) -> bool:
        """Send the remaining buckets and store the results. Return False if a gradient was not finite."""
        try:
            if self._launched == 0:
                self._refresh()
            while self._launched < len(self._buckets):
                self._launch(self._buckets[self._launched])
            for bucket in self._filled(self._late()):
                self._launch(bucket)
            finite = self._driver.finish() if self._driver is not None else True
            self._place_results()
        except BaseException as error:
            self.give_up(error)
            raise
        self._reset()
        self._used.clear()
        self.settled = True
        return finite

    def give_up(self, error: BaseException | None = None) -> None:
        """Roll back the step in progress. `error`: why, if other ranks may not know."""
        if self._driver is not None:
            self._driver.discard(error)
        self._reset()

    def _reset(self) -> None:
        self._driver = self._pass = None
        self._launched = self._passed = 0
        self._sent.clear()
        # Restore the missing gradient, so that optimizers skip the parameter.
        for parameter in self._blank:
            parameter.grad = None
        self._blank.clear()
        self._sparse.clear()

    def _late(self) -> list[Tensor]:
        """Parameters unfrozen or added after this step's buckets were filled."""
        late = [p for _, p in self._named() if p not in self._place and p.requires_grad]
        for parameter in late:
            self._use_unseen(parameter)
        return late

    def _launch(self, parameters: list[Tensor]) -> None:
        if self._driver is None:
            if self.options.scaler is not None:
                self._session.set_loss_scale(float(self.options.scaler.get_scale()))
            self._driver = self._session.driver()
        segments = [self._segment(parameter) for parameter in parameters]
        self._sent += zip(parameters, segments)
        key = (self._generation, self._launched)
        self._launched += 1
        self._driver.launch(Bucket(key, segments))

    def _segment(self, parameter: Tensor) -> Segment:
        name = self._names.get(parameter) or next(name for name, p in self._named() if p is parameter)
        grad = parameter.grad
        if grad is not None and grad.is_sparse and self.options.sparse_as_dense:
            parameter.grad = grad = grad.to_dense()
            self._sparse.append(parameter)
        used = grad is not None and parameter in self._used
        if grad is None:
            self._blank.add(parameter)
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
        return Segment(name, flat, grad, used)

    def _place_results(self) -> None:
        for parameter, segment in self._sent:
            if segment.used:
                self._blank.discard(parameter)
                if self.options.sum:
                    segment.flat.mul_(self._session.transport.size)
        for parameter in self._sparse:
            assert parameter.grad is not None
            parameter.grad = parameter.grad.to_sparse(1)


def _weak(method: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """A hook that does not keep its object alive: the garbage collector does not see what the hooks of a tensor hold."""
    reference = weakref.WeakMethod(method)

    def hook(parameter: Tensor) -> None:
        found = reference()
        if found is not None:
            found(parameter)

    return hook


def _dense(tensor: Tensor) -> bool:
    """Whether a tensor's elements fill its memory without gaps, in any order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True
