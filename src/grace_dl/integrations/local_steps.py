"""Local steps: every rank trains alone for a number of steps, then ranks exchange how far they have moved.

What travels is the difference between the parameters of the last exchange (the anchor) and the parameters now, compressed
by any method. An outer optimizer applies the average to the anchor (DiLoCo, arXiv:2311.08105). Fragments of the model may
take turns, and a result may arrive some steps late (Streaming DiLoCo, arXiv:2501.18512).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .. import digest
from ..algebra.base import Method
from ..algebra.local_rule import LocalRule, check_rounds
from ..algebra.named import build
from ..algebra.text import CarriesMethod, as_method, parse_rule
from ..errors import ConfigError
from ..handle import Handle
from ..pipeline.bucket import packed
from ..saved_state import listed
from ..session import Session
from ..telemetry import Stats
from . import local_state
from .local_buffers import LocalBuffers
from .local_parameters import (
    Outer,
    applies_as_is,
    check_complete,
    described,
    divide,
    gradient_like,
    grouped,
    outer_optimizer,
    outer_sgd,
    shard,
    trainable,
    transport_of,
)
from .local_replica import OwnValues, recover
from .local_state import InFlight
from .optimizer_state import restored_on_error


class LocalSteps(Handle):
    """Train `every` steps locally, then exchange the change of the parameters, compressed by `method`.

    Call `step()` on all ranks after every optimizer step. On creation all ranks take the parameters of rank 0.

    model: the model; no DDP is needed. A parameter sharded by FSDP2 is exchanged shard by shard.
    optimizer: the optimizer of the local steps; its state stays on its rank.
    method: compresses the difference; a schedule in it counts exchanges.
    every: local steps between two exchanges of a parameter.
    outer: the optimizer that applies the averaged difference, over the same parameters or a function of them; by
        default the difference is applied as it is (SGD with rate 1). DiLoCo: `torch.optim.SGD(model.parameters(), lr=0.7,
        momentum=0.9, nesterov=True)`.
    fragments: the model is divided into so many parts of about equal size, which take turns.
    delay: training continues for so many steps while an exchange travels; its result is applied after them.
    merge: the weight of the local parameters when a result is applied; 0 replaces them.
    anchor_dtype, anchor_device: where the anchor is kept, for example `torch.bfloat16` and "cpu", to save memory.
    group: the process group (or one-dimensional `DeviceMesh`) to exchange with; by default all ranks.

    >>> import grace_dl as grace
    >>> model = torch.nn.Linear(8, 8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> outer = grace.LocalSteps(model, optimizer, grace.int8(), every=2)
    >>> for _ in range(4):
    ...     model(torch.ones(1, 8)).sum().backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    ...     outer.step()
    >>> outer.stats().steps
    2
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        method: Method | str | CarriesMethod,
        *,
        every: int = 30,
        outer: Outer | None = None,
        fragments: int = 1,
        delay: int = 0,
        merge: float = 0.0,
        anchor_dtype: torch.dtype | None = None,
        anchor_device: torch.device | str | None = None,
        group: Any = None,
    ) -> None:
        if not isinstance(model, nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"LocalSteps takes a model and its optimizer, not {type(model).__name__} and {type(optimizer).__name__}; write "
                "LocalSteps(model, optimizer, method)."
            )
        chosen = as_method(method)
        check_rounds(every, fragments, delay, merge)
        self.every, self.delay, self.merge = every, delay, float(merge)
        self._model, self._inner = model, optimizer
        self._parameters = trainable(model, optimizer)
        self._fragments = divide(self._parameters, fragments)
        self._outer = outer_optimizer(outer, self._parameters)
        self._anchor_dtype, self._anchor_device = anchor_dtype, anchor_device
        transport = transport_of(group)
        super().__init__(Session(chosen, transport))
        settings = {"every": every, "fragments": fragments, "delay": delay, "merge": self.merge}
        transport.agree(described(settings, self._outer, model, self._parameters))
        self._own = OwnValues(model, self._parameters, transport)
        self._buffers = LocalBuffers(model, transport)
        self._steps = 0
        self._exchange: InFlight | None = None
        self._anchor = {name: self._kept(p) for name, p in self._parameters.items()}

    @classmethod
    def from_rule(
        cls,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        rule: LocalRule | str,
        *,
        group: Any = None,
    ) -> LocalSteps:
        """Local steps by a rule or its text form, as benchmarks and configs name them.

        >>> import grace_dl as grace
        >>> model = torch.nn.Linear(8, 8)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> grace.LocalSteps.from_rule(model, optimizer, "diloco:every=100").every
        100
        """
        chosen = parse_rule(rule) if isinstance(rule, str) else rule
        if not isinstance(chosen, LocalRule):
            raise ConfigError(f"{rule!r} is no rule for local steps; write one as local(int4; every=30).")
        return cls(
            model,
            optimizer,
            chosen.method,
            every=chosen.every,
            outer=None if chosen.plain else outer_sgd(chosen.outer_lr, chosen.outer_momentum),
            fragments=chosen.fragments,
            delay=chosen.delay,
            merge=chosen.merge,
            group=group,
        )

    # Training -----------------------------------------------------------------------------------------

    @property
    def local_steps(self) -> int:
        """How often `step` was called."""
        return self._steps

    def step(self) -> None:
        """Count a local step; start an exchange if one is due, and apply one that has arrived. All ranks call it."""
        self._check_open()
        self._own.forget()
        self._steps += 1
        if self._exchange is not None:
            if self._exchange.due <= self._steps:
                self._apply()
            elif self._exchange.driver is not None:
                self._exchange.driver.poll()
        for fragment in range(len(self._fragments)):
            # Turns are spread evenly over the period; every parameter is exchanged once in it.
            if (self._steps + fragment * self.every // len(self._fragments)) % self.every == 0:
                self._start(fragment, self.delay)
                if self.delay == 0:
                    self._apply()

    def synchronize(self) -> None:
        """Exchange everything now and wait for it, so that all ranks hold the same parameters. All ranks call it."""
        self._check_open()
        self._own.forget()
        if self._exchange is not None:
            self._apply()
        for fragment in range(len(self._fragments)):
            self._start(fragment, 0)
            self._apply(merge=0.0)  # nothing of the local parameters stays

    def _start(self, fragment: int, delay: int) -> None:
        check_complete(self._model, self._inner, self._parameters)
        self._buffers.live()  # raises if a buffer cannot be averaged when the result arrives
        # The average of parameters, where that is asked for, needs no difference: it rounds once and is exact.
        averaged = (
            applies_as_is(self._outer) and self.method == build("none") and not self.session.state.moved
        )
        names = self._fragments[fragment]
        locals_ = {name: shard(self._parameters[name]) for name in names}
        buckets = []
        for place, members in enumerate(grouped(names, locals_)):
            tensors = [locals_[n] if averaged else self._restored(n) - locals_[n] for n in members]
            buckets.append(packed(("local", fragment, place), members, tensors))
        driver = self.session.driver()
        try:
            for bucket in buckets:
                driver.launch(bucket)
        except BaseException as error:
            driver.discard(error)
            raise
        self._exchange = InFlight(fragment, self._steps + delay, buckets, averaged, driver)

    def _receive(self) -> None:
        """Wait for the exchange in flight, if any; its result is applied later."""
        exchange = self._exchange
        if exchange is None or exchange.driver is None:
            return
        driver, exchange.driver = exchange.driver, None
        try:
            exchange.finite = driver.finish()
        except BaseException as error:
            driver.discard(error)
            self._exchange = None
            raise
        exchange.results = {s.name: s.view for bucket in exchange.buckets for s in bucket.segments}
        exchange.buckets = []

    def _apply(self, merge: float | None = None) -> None:
        """Move the anchor by the result of the exchange in flight, and the parameters with it."""
        alpha = self.merge if merge is None else merge
        self._receive()
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        names = self._fragments[exchange.fragment]
        with torch.no_grad():
            before = {name: shard(self._parameters[name]).clone() for name in names} if alpha else {}
            self._move(names, exchange)
            for name in names:
                self._anchor[name] = self._kept(self._parameters[name])
            if exchange.finite:
                for name, mine in before.items():
                    shard(self._parameters[name]).lerp_(mine, alpha)
            else:
                recover(self._inner, self._parameters, self._restored)
        self._buffers.average()

    def _move(self, names: list[str], exchange: InFlight) -> None:
        """Set the parameters to the new anchor; a round in which a rank diverged is dropped on all ranks."""
        assigned = exchange.averaged and exchange.finite and applies_as_is(self._outer)
        for name in names:
            value = exchange.results[name] if assigned else self._restored(name)
            shard(self._parameters[name]).copy_(value)
        if exchange.finite:
            self._descend({} if assigned else self._differences(exchange))

    def _differences(self, exchange: InFlight) -> dict[str, Tensor]:
        if not exchange.averaged:
            return exchange.results
        # The outer optimizer's settings have changed since the exchange started.
        return {name: self._restored(name) - mean for name, mean in exchange.results.items()}

    def _descend(self, differences: Mapping[str, Tensor]) -> None:
        """Move the parameters from the anchor by averaged differences."""
        if self._outer is None:
            for name, difference in differences.items():
                shard(self._parameters[name]).sub_(difference)
            return
        gradients = {name: p.grad for name, p in self._parameters.items()}
        try:
            for name, parameter in self._parameters.items():
                mine = differences.get(name)
                # The outer optimizer skips parameters without a gradient: those of other fragments, and frozen ones that have
                # arrived, which its momentum would move on.
                if mine is not None and not parameter.requires_grad and not mine.any():
                    mine = None
                parameter.grad = None if mine is None else gradient_like(parameter, mine)
            self._outer.step()
        finally:
            for name, gradient in gradients.items():
                self._parameters[name].grad = gradient

    # The anchor ---------------------------------------------------------------------------------------

    def _kept(self, parameter: Tensor) -> Tensor:
        mine = shard(parameter)
        kept = mine.to(dtype=self._anchor_dtype or mine.dtype, device=self._anchor_device or mine.device)
        return kept.clone() if kept is mine else kept

    def _restored(self, name: str) -> Tensor:
        """The anchor in the parameter's dtype, on its device."""
        mine = shard(self._parameters[name])
        return self._anchor[name].to(dtype=mine.dtype, device=mine.device)

    @contextmanager
    def at_anchor(self) -> Iterator[None]:
        """The model as of the last exchange, the same on all ranks, for an evaluation: parameters and averaged buffers.

        Local progress is restored at the end of the block; no rank communicates.
        """
        self._check_open()
        mine = [tensor.clone() for tensor in self._live()]
        common = [*(self._restored(name) for name in self._parameters), *self._buffers.anchor]
        try:
            for tensor, value in zip(self._live(), common):
                tensor.copy_(value)
            yield
        finally:
            for tensor, value in zip(self._live(), mine):
                tensor.copy_(value)

    def _live(self) -> list[Tensor]:
        return [*(shard(p) for p in self._parameters.values()), *self._buffers.live()]

    @property
    def common_state(self) -> dict[str, Any]:
        """What must be the same on all ranks at any step: the anchor, and the state of the outer optimizer."""
        return {
            "steps": self._steps,
            "anchor": dict(self._anchor),
            "outer": local_state.outer_state(self._outer),
        }

    # Handle -------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Bytes, collectives and seconds of this rank; `steps` counts exchanges. Averages of buffers are included."""
        found = super().stats()
        return dataclasses.replace(found + self._buffers.stats, steps=found.steps, skipped=found.skipped)

    def _check_open(self) -> None:
        self.session  # noqa: B018 - raises if closed

    def _check_idle(self, what: str) -> None:
        self._receive()

    def _parameter_sizes(self) -> Mapping[str, int]:
        return {name: shard(parameter).numel() for name, parameter in self._parameters.items()}

    def _release(self) -> None:
        if self._exchange is not None and self._exchange.driver is not None:
            self._exchange.driver.abandon()
        self._exchange = None
        self._own.forget()
        self._buffers.release()

    def state_dict(self) -> dict[str, Any]:
        """All state of this rank, to be saved with this rank's model at the same local step on every rank.

        Holds the method's state, the anchor, the outer optimizer, and the result of an exchange that is not yet applied.
        """
        state = super().state_dict()
        exchange = self._exchange
        local = {
            **self.common_state,
            # Copies: the digest would not match once training has changed the originals.
            "outer": copy.deepcopy(local_state.outer_state(self._outer)),
            "every": self.every,
            "fragments": len(self._fragments),
            "parameters": self._own.digest(),
            "anchor": {name: kept.clone() for name, kept in self._anchor.items()},
            "buffers": [kept.clone() for kept in self._buffers.anchor],
            "arrived": None if exchange is None else exchange.state_dict(),
        }
        return digest.sealed({**state, "local": local})

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Restore a `state_dict`, or raise without a change; load the model of the same step as well, in any order.

        The model may have been loaded before this object was created, which gave all ranks the parameters of rank 0: until its first
        step a rank can return to its own, if the state was saved with them.

        A list of the states of all ranks is converted to a different number of ranks. States of ranks that are gone may be
        missing: their residuals are lost, and those of the others keep their weight in the average. The anchor is the same in
        all states, so ranks agree again at the next exchange whatever local parameters they continue from.
        """
        mine = local_state.Expected(
            self.every, len(self._fragments), self._outer is not None, self._anchor, self._buffers.anchor
        )
        found = [local_state.checked(each, mine) for each in listed(state)]
        local_state.check_common(found)
        shards = {name: shard(parameter) for name, parameter in self._parameters.items()}
        copies = local_state.copied(found[0], mine, shards, self._fragments)
        self._check_idle("load")
        with restored_on_error(self._outer):
            local_state.load_outer(self._outer, found[0]["outer"])
            self.session.load_state_dict(state, self._parameter_sizes(), partial=True)
        # Nothing from here on can fail.
        self._own.put_back({str(local.get("parameters")) for local in found})
        self._steps, self._anchor, self._buffers.anchor = copies.steps, copies.anchor, copies.buffers
        self._exchange = None if copies.arrived is None else InFlight(**copies.arrived, buckets=[])
