"""DGC's memory: momentum correction, local gradient clipping and momentum factor masking (Lin 2018, section 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch import Tensor

from .. import kernels
from ..compressor.base import Compressor, Payload
from ..kernels import Correction
from ..kernels.limits import LARGE
from ..key import Key
from ..settings import flag, number
from . import overflow
from .base import Memory, NotFinite, Pending, Piece
from .norms import norm


@dataclass(slots=True)
class DgcPending(Pending):
    """A step in progress, with the gradient that was accumulated: `scale * used`."""

    used: Tensor | None = None
    scale: float = 1.0


class DgcMemory(Memory):
    """m = mu m + g, v = v + m; sent elements are subtracted from v, and their momentum is set to zero.

    momentum: mu; the optimizer must then have no momentum.
    nesterov: m = mu (m + g), v = v + m + g.
    momentum_masking: set m to zero where an element was sent, so that stale momentum is dropped.
    gradient_clipping: before accumulation, limit each parameter's local gradient to this norm divided by the square
    root of the number of workers; or a function from gradient to clipped gradient.
    """

    roles = {"m": "momentum", "v": "residual"}
    checks_finite = True

    def __init__(
        self,
        momentum: float = 0.9,
        nesterov: bool = False,
        momentum_masking: bool = True,
        gradient_clipping: float | Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        why = "the share of the last step's momentum that remains; 0.9 is usual, 0 is plain accumulation"
        self.momentum = number("momentum", momentum, why, least=0, below=1)
        if gradient_clipping is not None and not callable(gradient_clipping):
            why = "the largest norm of a parameter's gradient; or a function from gradient to clipped gradient, or None"
            number("gradient_clipping", gradient_clipping, why, above=0, most=math.inf)
        self.nesterov = flag("nesterov", nesterov)
        self.momentum_masking = flag("momentum_masking", momentum_masking)
        self.gradient_clipping = gradient_clipping

    def settings(self) -> dict[str, Any]:
        found = super().settings()
        if callable(self.gradient_clipping):
            found["gradient_clipping"] = getattr(self.gradient_clipping, "__qualname__", "a function")
        return found

    def _clip(self, grad: Tensor, workers: int) -> tuple[Tensor, float]:
        """The gradient to accumulate and its factor; `grad` is not modified before the step is committed or aborted."""
        limit = self.gradient_clipping
        if limit is None:
            return grad, 1.0
        if callable(limit):
            clipped = limit(grad.clone())
            return clipped.to(grad.dtype).contiguous().view_as(grad), 1.0
        norm = math.sqrt(kernels.of(grad).square_sum(grad))
        bound = limit / math.sqrt(workers)
        return grad, (bound / norm if norm > bound else 1.0)

    def compensate(self, tensor: Tensor, name: str) -> Tensor:
        """v after this gradient, on one worker; changes nothing."""
        m, v = self.slot(name, "m", tensor).clone(), self.slot(name, "v", tensor).clone()
        state = Correction(m, v, *self._clip(tensor, workers=1))
        kernels.of(v).dgc_correct_(state, self.momentum, self.nesterov)
        return v.view_as(tensor)

    @property
    def dense_share(self) -> float:  # type: ignore[override]
        """The momentum of averages of this share stays finite however many follow each other."""
        return (1 - self.momentum) / 2

    def begin(self, grad: Tensor, key: Key, compressor: Compressor, out: Payload | None = None) -> DgcPending:
        (result,) = self._begin_all([(grad, key, out)], compressor, math.inf)
        if isinstance(result, Exception):
            raise result
        assert isinstance(result, DgcPending)
        return result

    def begin_all(self, pieces: Sequence[Piece], compressor: Compressor) -> list[Pending | Exception]:
        calm = [place for place, (_, key, _) in enumerate(pieces) if not self.watches(key.name)]
        results: list[Pending | Exception] = [NotFinite()] * len(pieces)
        found = self._begin_all([pieces[place] for place in calm], compressor)
        for place, result in zip(calm, found, strict=True):
            results[place] = result
        try:
            for place, (grad, key, out) in enumerate(pieces):
                if isinstance(results[place], NotFinite) and grad.is_cpu:
                    try:
                        results[place] = overflow.begin(self, grad, key, compressor, out)
                    except Exception as error:
                        results[place] = error
        except BaseException:
            self.abort_all(results)
            raise
        return results

    def _begin_all(
        self, pieces: Sequence[Piece], compressor: Compressor, limit: float | None = None
    ) -> list[Pending | Exception]:
        """`begin_all`, where a gradient that reaches `limit` (default: a large one) counts as not finite."""
        results: list[Pending | Exception] = []
        for grad, key, _ in pieces:
            try:
                used, scale = self._prepare(grad, key)
                results.append(DgcPending(key, compressor, grad, [], None, used=used, scale=scale))
            except Exception as error:
                results.append(error)
        places = [place for place, result in enumerate(results) if isinstance(result, DgcPending)]
        pendings = [result for result in results if isinstance(result, DgcPending)]
        if not pendings:
            return results
        steps: Iterator[bool | Exception]
        try:
            encoded, steps = compressor.encode_corrected_(
                [self._state(p, limit) for p in pendings],
                [p.key for p in pendings],
                self.momentum,
                self.nesterov,
                [pieces[place][2] for place in places],
            )
        except Exception as error:
            encoded, steps = [([], None)] * len(places), iter([error] * len(places))
        done: list[bool | Exception] = []
        try:
            self._run(steps, done)
            for pending, (payload, ctx) in zip(pendings, encoded, strict=True):
                pending.payload, pending.ctx = payload, ctx
            for place, good in zip(places, done, strict=True):
                if good is not True:
                    results[place] = good or NotFinite()
        except BaseException:
            for pending, good in zip(pendings, done):
                if good is True:
                    self.abort(pending)
            raise
        return results

    @staticmethod
    def _run(steps: Iterator[bool | Exception], done: list[bool | Exception]) -> None:
        """Run all steps without Python code in between: a pass over a tensor evicts the interpreter from the CPU cache.

        An interrupt is raised after the last one, when everything is recorded.
        """
        while True:
            try:
                return done.extend(steps)
            except Exception as error:
                done.append(error)

    def _prepare(self, grad: Tensor, key: Key) -> tuple[Tensor, float]:
        """Allocate a parameter's state, and clip; without clipping, the check for NaN and infinity comes later."""
        self.slot(key.name, "m", grad), self.slot(key.name, "v", grad)
        if self.gradient_clipping is not None and not kernels.of(grad).all_finite(grad):
            raise NotFinite
        return self._clip(grad, key.workers)

    def _state(self, pending: DgcPending, limit: float | None = None) -> Correction:
        slots, used, scale = self.state[pending.key.name], pending.used, pending.scale
        assert used is not None
        if limit is None:
            limit = LARGE[used.dtype] if scale == 1 else math.inf  # a clipped gradient is not large
        return Correction(slots["m"], slots["v"], used, scale, limit)

    def magnitude(self, pending: Pending) -> float:
        slots = self.state[pending.key.name]
        m, v = slots["m"].clone(), slots["v"].clone()
        if v.numel():
            kept = [m] if self.momentum_masking else None
            pending.compressor.settle_([v], kept, [pending.payload], [pending.ctx])
        # Momentum goes on to be added up when gradients are zero.
        return norm(v) + norm(m) * self.momentum / (1 - self.momentum)

    def commit(self, pending: Pending) -> None:
        self.commit_all([pending])

    def commit_all(self, pendings: Sequence[Pending]) -> None:
        filled = [pending for pending in pendings if pending.grad.numel()]
        # Of those with withheld elements, payloads are of another compressor.
        for compressor, group in groupby(filled, key=lambda pending: pending.compressor):
            chosen = list(group)
            slots = [self.state[pending.key.name] for pending in chosen]
            compressor.settle_(
                [slot["v"] for slot in slots],
                [slot["m"] for slot in slots] if self.momentum_masking else None,
                [pending.payload for pending in chosen],
                [pending.ctx for pending in chosen],
            )

    def abort(self, pending: Pending) -> None:
        assert isinstance(pending, DgcPending)
        state = self._state(pending)
        kernels.of(state.v).dgc_undo_(state, self.momentum, self.nesterov)

    def after_dense_(self, means: Sequence[Tensor], names: Sequence[str]) -> None:
        """Apply momentum to parameters that were sent dense, after the average."""
        momenta = [self.slot(name, "m", mean) for mean, name in zip(means, names)]
        kernels.of(means[0]).dgc_dense_(means, momenta, self.momentum, self.nesterov)

    def absorbed(self, slots: Mapping[str, Tensor], owed: Tensor) -> dict[str, Tensor]:
        return {**slots, "v": slots["v"] + owed.view_as(slots["v"])}

    def residual(self, name: str) -> Tensor | None:
        return self.state.get(name, {}).get("v")
