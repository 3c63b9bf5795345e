"""Adam whose ranks exchange compressed momenta: what 1-bit Adam and 0/1 Adam share.

A step of a parameter is one of three (`Step`). In a variance step ranks average gradients uncompressed, as plain Adam does. In an
exchange each rank adds its gradient to the common momentum, and ranks average these momenta by a method of the library; the
variance stays as it is. In a local step a rank moves alone; the next exchange replaces what it did by the average.

Momenta travel divided by the root of the variance, which all ranks know. Signs are the same, but their magnitude is then in proportion to
what Adam's steps are: with one magnitude for all elements of a tensor, those of small variance take steps without bound.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn, SupportsIndex

import torch
from torch import Tensor

from ..algebra.base import Method
from ..algebra.named import build
from ..algebra.text import CarriesMethod, as_method
from ..communicator.transaction import finite
from ..errors import ConfigError, StateError
from ..handle import Handle
from ..pipeline.bucket import Segment, check
from ..saved_state import listed
from ..session import Session
from ..telemetry import Stats
from ..transport import Transport
from .exchange import average, broadcast
from .local_parameters import transport_of
from .momentum_settings import Params, check_names, check_scaled, check_settings, separated
from .optimizer import attached, warn_of_ddp
from .optimizer_state import restored_on_error


class Step(Enum):
    """What a parameter's step does."""

    VARIANCE = "gradients are averaged uncompressed; momentum and variance are updated"
    EXCHANGE = "momenta are averaged, compressed"
    LOCAL = "no exchange"


@dataclass(slots=True)
class _Part:
    """One parameter's part of a step."""

    name: str
    parameter: Tensor
    grad: Tensor | None
    slots: dict[str, Any]
    group: dict[str, Any]
    kind: Step
    moves: bool
    """Whether it takes a step; otherwise only its round of local steps ends."""

    @property
    def rate(self) -> float:
        """The rate of the next step, with Adam's correction for a momentum that began at zero."""
        if not self.moves:
            return 0.0
        lr, beta = self.group["lr"], self.group["betas"][0]
        return float(lr / (1 - beta ** (self.slots["step"] + 1)))

    @property
    def decay(self) -> float:
        return float(1 - self.group["lr"] * self.group["weight_decay"]) if self.moves else 1.0


class MomentumHandle(Handle):
    """The handle of an optimizer that exchanges momenta: its method is that of the momentum."""

    def __init__(self, optimizer: MomentumAdam, method: Method, transport: Transport) -> None:
        check_scaled(method)
        super().__init__(Session(method, transport))
        self.gradients = Session(build("none"), transport)
        """The exchange of variance steps; it has no state."""
        self._optimizer = weakref.ref(optimizer)
        attached.add(optimizer)

    def stats(self) -> Stats:
        """Bytes, collectives and seconds of this rank; `steps` counts exchanges, those of gradients included."""
        return super().stats() + self.gradients.stats

    def switch(self, method: Method | str | CarriesMethod) -> None:
        """Exchange momenta by another method from the next step on. All ranks must do so between the same two steps.

        The residual of the current method is added to the next momentum. The variance stays frozen.
        """
        chosen = as_method(method)
        check_scaled(chosen)
        super().switch(chosen)

    def _parameter_sizes(self) -> Mapping[str, int] | None:
        optimizer = self._optimizer()
        return None if optimizer is None else {name: p.numel() for name, p, _ in optimizer._named()}

    def _release(self) -> None:
        self.gradients.forget_buckets()
        optimizer = self._optimizer()
        if optimizer is not None:
            attached.discard(optimizer)


class MomentumAdam(torch.optim.Optimizer):
    """Adam with decoupled weight decay (AdamW) whose ranks exchange momenta; subclasses say which step does what.

    `grace` is its handle. All exchanges take place in `step`, which all ranks must call; gradients stay local, so clip and accumulate
    them as in a single process.
    """

    _step_supports_amp_scaling = True  # a GradScaler must not skip `step` on one rank alone
    _weighted: bool
    """Whether momenta are weighted by the rate of their step when they are exchanged."""

    def __init__(
        self,
        params: Params,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        method: Method | str | CarriesMethod | None,
        group: Any,
    ) -> None:
        chosen = build("efsignsgd", lr=1.0, communicator="alltoall") if method is None else as_method(method)
        groups, self._given = separated(params)
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        check_names([name for name, _, _ in self._named()])
        transport = transport_of(group)
        self.grace = MomentumHandle(self, chosen, transport)
        parameters = [parameter for _, parameter, _ in self._named()]
        warn_of_ddp(parameters, transport, "pass the bare model's parameters and do not wrap it")
        broadcast(transport, parameters)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; they begin with a warm-up of their own. All ranks take those of rank 0."""
        check_settings({**self.defaults, **param_group})
        super().add_param_group(param_group)
        if hasattr(self, "grace"):
            broadcast(self.grace.session.transport, self.param_groups[-1]["params"])

    def _kind(self, step: int) -> Step:
        """What the step of a parameter that has made `step` steps does; the same on all ranks."""
        raise NotImplementedError

    def _named(self) -> list[tuple[str, Tensor, dict[str, Any]]]:
        """All parameters with names and groups; those without a name are named by position."""
        return [
            (self._given.get(parameter, f"group{place}.{i}"), parameter, group)
            for place, group in enumerate(self.param_groups)
            for i, parameter in enumerate(group["params"])
        ]

    # Steps --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; all ranks call it. If a gradient is not finite on some rank, no rank takes it.

        A local step is skipped only by the rank whose gradient is not finite.
        """
        self.grace.session  # noqa: B018 - raises if closed
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parts: dict[Step, list[_Part]] = {kind: [] for kind in Step}
        for part in self._parts():
            parts[part.kind].append(part)
        # Nothing changes before both verdicts are known.
        exact, gradients = average(
            self.grace.gradients,
            "gradients",
            {
                p.name: torch.zeros_like(p.parameter) if p.grad is None else p.grad
                for p in parts[Step.VARIANCE]
            },
            {p.name for p in parts[Step.VARIANCE] if p.grad is None},
        )
        momenta = self._exchanged(parts[Step.EXCHANGE]) if exact else None
        if momenta is not None:
            for part in parts[Step.VARIANCE]:
                _take_gradient(part, gradients[part.name])
            for part in parts[Step.EXCHANGE]:
                self._take_average(part, momenta[part.name], part.rate, part.decay)
                part.slots["step"] += part.moves
            self._step_alone(parts[Step.LOCAL])
        return loss

    @torch.no_grad()
    def synchronize(self) -> None:
        """End a round of local steps now, so that all ranks hold the same parameters; a no-op after an exchange.

        All ranks call it, before an evaluation or to save a state for a different number of ranks.
        """
        parts = [part for part in self._parts(fresh=False) if "rate" in part.slots]
        momenta = self._exchanged(parts)
        if momenta is not None:
            for part in parts:
                self._take_average(part, momenta[part.name], part.rate, part.decay)

    def _parts(self, fresh: bool = True) -> list[_Part]:
        """The parameters that take part in a step; unless `fresh`, they do not move by themselves."""
        scale = getattr(self, "grad_scale", None)  # set by a GradScaler while it calls `step`
        found = []
        for name, parameter, group in self._named():
            # A parameter that was frozen within a round of local steps differs between ranks until the round ends.
            if not parameter.requires_grad and "rate" not in self.state.get(parameter, {}):
                continue
            moves = fresh and parameter.requires_grad
            grad = parameter.grad if moves else None
            if grad is not None:
                check(grad, name)
                grad = grad.detach() if scale is None else grad.detach() / scale
            slots = self.state[parameter]
            if not slots:
                zeros = torch.zeros_like(parameter), torch.zeros_like(parameter)
                slots.update(step=0, updates=0, exp_avg=zeros[0], exp_avg_sq=zeros[1])
            kind = self._kind(slots["step"]) if moves else Step.EXCHANGE
            found.append(_Part(name, parameter, grad, slots, group, kind, moves))
        return found

    def _exchanged(self, parts: Sequence[_Part]) -> dict[str, Segment] | None:
        """The averages of what each rank would move; None if a rank's gradient was not finite."""
        values = {}
        for part in parts:
            moved = part.slots.get("moved")
            value = torch.zeros_like(part.parameter)
            if part.moves:
                grad = value if part.grad is None else part.grad
                value = _direction(part, part.slots["exp_avg"].lerp(grad, 1 - part.group["betas"][0]))
                value.masked_fill_(~grad.isfinite(), float("nan"))  # which the limit may have hidden
                value = value.mul_(part.rate) if self._weighted else value
            values[part.name] = value if moved is None else value.add_(moved)
        unused = {part.name for part in parts if part.grad is None and "moved" not in part.slots}
        good, averages = average(self.grace.session, "momenta", values, unused)
        return averages if good else None

    def _take_average(self, part: _Part, result: Segment, rate: float, decay: float) -> None:
        """End a round: move the parameter by the average, from where the round began; the momentum follows from it."""
        slots = part.slots
        rate, decay = rate + slots.pop("rate", 0.0), decay * slots.pop("decay", 1.0)
        anchor, _ = slots.pop("anchor", None), slots.pop("moved", None)
        if not result.used:
            return
        if anchor is not None:
            part.parameter.copy_(anchor)
        _move(part, result.view, 1.0 if self._weighted else rate, decay)
        weight = rate if self._weighted else 1.0
        # Steps with rate 0 say nothing about the momentum.
        slots["exp_avg"].copy_(result.view * (1 / weight if weight else 0.0)).mul_(_scale(part))

    def _step_alone(self, parts: Sequence[_Part]) -> None:
        good = all(finite(part.grad) for part in parts if part.grad is not None)
        self.grace.session.stats.skipped += not good
        for part in parts:
            slots, rate, decay = part.slots, part.rate, part.decay
            slots["step"] += 1
            # The same on all ranks, whatever their gradients.
            slots["rate"] = slots.get("rate", 0.0) + rate
            slots["decay"] = slots.get("decay", 1.0) * decay
            if part.grad is None or not good:
                continue
            if "anchor" not in slots:
                slots["anchor"] = part.parameter.detach().clone()
                slots["moved"] = torch.zeros_like(part.parameter)
            slots["exp_avg"].lerp_(part.grad, 1 - part.group["betas"][0])
            direction = _direction(part, slots["exp_avg"])
            slots["moved"].add_(direction, alpha=rate)
            _move(part, direction, rate, decay)

    # State --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All state of this rank: Adam's, and that of the handle under "grace". Ranks differ, so every rank saves its own."""
        return {**super().state_dict(), "grace": self.grace.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Restore the `state_dict` of this rank, also within a round of local steps.

        Pass a list with those of all ranks to continue on a different number of ranks; call `synchronize` before saving them.
        If it cannot be loaded, nothing changes.
        """
        states = listed(state_dict)
        several = states[0] is not state_dict
        for state in states:
            fields = state if isinstance(state, Mapping) else {}
            missing = [field for field in ("grace", "state", "param_groups") if fields.get(field) is None]
            if missing:
                raise StateError(
                    f"this is no state of {type(self).__name__}: it has no field {missing[0]!r}; pass what its state_dict() "
                    "returned."
                )
        if several and any("rate" in slots for s in states for slots in s["state"].values()):
            raise StateError(
                "these states were saved within a round of local steps, in which ranks differ; call synchronize() before "
                "saving, or load on as many ranks as before, each its own state."
            )
        self._check_shapes(states[0])
        saved = [state["grace"] for state in states] if several else states[0]["grace"]
        # The error for another model or rank is clearer here.
        self.grace.session.fitting(saved, self.grace._parameter_sizes())
        with restored_on_error(self):
            super().load_state_dict({key: value for key, value in states[0].items() if key != "grace"})
            self.grace.load_state_dict(saved)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise ConfigError(
            f"{type(self).__name__} cannot be copied or pickled: its exchange belongs to this process; save its state_dict()."
        )

    def _check_shapes(self, state: Mapping[str, Any]) -> None:
        """Raise if saved moments are of parameters with other shapes, which torch would load."""
        places = [place for group in state["param_groups"] for place in group["params"]]
        for place, (name, parameter, _) in zip(places, self._named()):
            saved = state["state"].get(place, {}).get("exp_avg")
            if saved is not None and saved.shape != parameter.shape:
                raise StateError(
                    f"the saved state is of another model: the momentum of {name!r} has shape {tuple(saved.shape)}, the parameter "
                    f"{tuple(parameter.shape)}; load it into the same model, with its parameters in the same order."
                )


def _take_gradient(part: _Part, mean: Segment) -> None:
    """A step of Adam, in the order of operations of `torch.optim.AdamW`."""
    if not mean.used:
        return
    slots, (beta1, beta2), rate = part.slots, part.group["betas"], part.rate
    slots["exp_avg"].lerp_(mean.view, 1 - beta1)
    slots["exp_avg_sq"].mul_(beta2).addcmul_(mean.view, mean.view, value=1 - beta2)
    slots["step"] += 1
    slots["updates"] += 1
    if part.decay != 1:
        part.parameter.mul_(part.decay)
    part.parameter.addcdiv_(slots["exp_avg"], _scale(part), value=-rate)


def _scale(part: _Part) -> Tensor:
    """√v + ε, with Adam's correction for a variance that began at zero."""
    correction = (1 - part.group["betas"][1] ** part.slots["updates"]) ** 0.5
    return (part.slots["exp_avg_sq"].sqrt() / correction).add_(part.group["eps"])


def _direction(part: _Part, momentum: Tensor) -> Tensor:
    """m / (√v + ε), limited to the longest step that Adam takes (Kingma 2015, section 2.1).

    A variance that is frozen too early does not limit it: gradients that were zero until then would move parameters without bound.
    """
    beta1, beta2 = part.group["betas"]
    longest = max(1.0, (1 - beta1) / (1 - beta2) ** 0.5)
    return (momentum / _scale(part)).clamp_(-longest, longest)


def _move(part: _Part, direction: Tensor, rate: float, decay: float) -> None:
    if decay != 1:
        part.parameter.mul_(decay)
    part.parameter.sub_(direction, alpha=rate)
