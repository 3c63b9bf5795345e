"""A running method: its state, its communicators and the ranks it exchanges with. A handle owns one session."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from . import digest, saved_state
from .algebra.auto import Auto, Choice
from .algebra.base import Method, Single
from .algebra.named import Named
from .communicator.base import Communicator
from .communicator.state import State
from .errors import ConfigError, GraceError
from .memory.base import Memory
from .pipeline.bucket import Bucket, single
from .pipeline.driver import Program, StepDriver
from .routing import Routing
from .saved_state import Saved
from .telemetry import Stats
from .transport import Transport


class Tuner(Protocol):
    """Chooses what a session with the method `auto` uses, by measured steps."""

    @property
    def settled(self) -> bool:
        """Whether it has chosen, until it looks again."""
        ...

    def driver(self, session: Session) -> StepDriver:
        """Start a training step of `session`, which may be told to use something else first. Called on all ranks."""
        ...

    def explain(self) -> str:
        """What was chosen, and why."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> Choice:
        """Continue with the saved choice, which is returned; raises without a change if there is none."""
        ...


class Session:
    """Runs `method` among the ranks of `transport`. All ranks create their session together, with the same method.

    The method is resolved for each parameter at each step. Where the result changes (a schedule, `switch`), the
    parameter's state moves to the new communicator, and no residual is lost. `way`: the communicator that the target
    requires, in place of the methods' own. `tuner`: makes what chooses for the method `auto`, if the target can have one.
    """

    def __init__(
        self,
        method: Method,
        transport: Transport,
        way: type[Communicator] | None = None,
        tuner: Callable[[Auto], Tuner] | None = None,
    ) -> None:
        self.transport = transport
        self.stats = Stats()
        self.state = State(joinable=transport.renewable)
        self._way = way
        self._make_tuner = tuner
        self._routing = Routing()
        self._device = torch.device("cpu")
        self._routing.communicators = self._open(method)
        self._start(method)

    def _start(self, method: Method) -> None:
        """Use a method whose communicators are open."""
        self.method = self.in_use = method
        """The method of the user, and what it resolves to now: another one only for `auto`."""
        self.tuner: Tuner | None = None
        self.stats.choice = ""
        if isinstance(method, Auto):
            assert self._make_tuner is not None  # checked by `_open`
            self.in_use = Choice(method.plain)
            self.tuner = self._make_tuner(method)
            self.stats.choice = str(self.in_use)

    def _open(self, method: Method) -> dict[Single, Communicator]:
        """The communicators of a method; existing ones are reused. Changes nothing but the transport."""
        if isinstance(method, Auto) and self._make_tuner is None:
            raise ConfigError(
                f"{method} measures the steps of DDP models and optimizers, and cannot choose for this target; attach one "
                f"of its methods, such as {method.allow[0]!r}, or compare them with `grace plan`."
            )
        opened = {
            part: self._routing.communicators.get(part) or part.build(self.transport, self.state, self._way)
            for part in method.parts()
        }
        channels = max(communicator.channels for communicator in opened.values())
        # The method itself as well: schedules with the same parts may change at different steps.
        described = [str(method), *(communicator.description() for communicator in opened.values())]
        self.transport.open(channels, json.dumps(described))
        for part, communicator in opened.items():
            communicator.connect()
            if part not in self._routing.communicators:
                _warn_of_traffic(part, communicator)
        return opened

    def communicator_of(self, name: str) -> Communicator:
        """The communicator that holds a parameter's state, or will hold it at the next step."""
        return self._routing.communicator_of(name, self.in_use, self.state.furthest)

    def memories(self) -> dict[str, Memory]:
        """All memories, by the text of their method and their label within it."""
        return {
            f"{text}/{label}": memory
            for text, found in self._by_text().items()
            for label, memory in found.memories().items()
        }

    def _by_text(self) -> dict[str, Communicator]:
        """The communicators by the text of their part of the method, which is unique: equal texts are numbered."""
        found: dict[str, Communicator] = {}
        seen: Counter[str] = Counter()
        for part, communicator in self._routing.communicators.items():
            text = str(part)
            seen[text] += 1
            found[text if seen[text] == 1 else f"{text} #{seen[text]}"] = communicator
        return found

    @property
    def whole_buckets(self) -> bool:
        """Whether the method encodes whole buckets, which must then have no gaps."""
        return all(found.compressor.whole_bucket for found in self._routing.communicators.values())

    # Steps --------------------------------------------------------------------------------------------

    def driver(self) -> StepDriver:
        """Start a training step; returns the driver for all its buckets."""
        self._follow()
        return StepDriver(self, self.state.furthest) if self.tuner is None else self.tuner.driver(self)

    def _follow(self) -> None:
        """Rejoin the engine if it was restarted."""
        if self.transport.stale:
            self.rejoin(self.transport.renew())

    def step(self, tensor: Tensor, name: str) -> Tensor:
        """Exchange one tensor with all ranks; returns the result, of the same shape and dtype."""
        return self.receive(*self.send(tensor, name))

    def send(self, tensor: Tensor, name: str) -> tuple[StepDriver, Bucket]:
        """Compress and send; pass the result to `receive`."""
        bucket = single(tensor, name)
        self._follow()
        driver = StepDriver(self, self.state.step(name))
        if bucket.segments[0].flat.numel():
            driver.launch(bucket)
        return driver, bucket

    def receive(self, driver: StepDriver, bucket: Bucket) -> Tensor:
        """Complete what `send` started; returns the result."""
        driver.finish()
        return bucket.segments[0].view

    def joint(self, finite: bool, failed: bool) -> bool:
        """Whether a step is finite on all ranks; ranks that exchange in groups tell each other."""
        for communicator in self._routing.communicators.values():
            if communicator.in_groups:
                return communicator.joint(finite, failed, self._device)
        return finite

    def programs(self, bucket: Bucket, step: int) -> list[Program]:
        """The programs that exchange a bucket: one for each method of its parameters at this step."""
        self._device = bucket.device
        return self._routing.programs(bucket, self.in_use, step)

    # Change -------------------------------------------------------------------------------------------

    def switch(self, method: Method) -> None:
        """Use another method from the next step on; residuals carry over. All ranks switch between the same steps."""
        opened = self._open(method)
        self._start(method)
        # Move the state of the previous method now, so that its memory is freed.
        self._routing.communicators = {**self._routing.communicators, **opened}
        self._resolve_anew()
        self._routing.communicators = opened

    def use(self, choice: Choice) -> None:
        """What the method `auto` resolves to from now on; residuals carry over. All ranks call it between the same steps."""
        self.in_use = choice
        self.stats.choice = str(choice)
        self._resolve_anew()
        used = set(choice.parts())
        for part, communicator in self._routing.communicators.items():
            if part not in used:
                communicator.forget_plans()  # frees their frames

    def _resolve_anew(self) -> None:
        self._routing.resolve_anew(self.in_use, self.state.furthest)

    def rejoin(self, transport: Transport) -> None:
        """Continue with different ranks, as after an elastic reset: state starts fresh, but residuals carry over.

        They keep their weight in the average over ranks. Those of ranks that have left are lost.
        """
        for name, communicator in self._routing.homes():
            self.state.carry(name, communicator.owed(name))
        self.state.rescale(transport.size / self.transport.size)
        self.state.steps.clear()
        self.state.furthest = 0
        self.transport = transport
        self._routing.clear()
        self._routing.communicators = self._open(self.method)
        self._start(self.method)

    def forget_buckets(self) -> None:
        """Drop the plans of buckets, because buckets are rebuilt."""
        self._routing.forget_buckets()

    def set_loss_scale(self, scale: float) -> None:
        """Set the loss scale of the gradients; existing state is rescaled."""
        before = self.state.loss_scale
        if before is not None and scale != before:
            for memory in self.memories().values():
                memory.rescale_(scale / before)
            self.state.rescale(scale / before)
        self.state.loss_scale = scale

    def close(self) -> None:
        """Release state, buffers and channels."""
        self._routing.clear()
        self.transport.close()

    # Checkpoints --------------------------------------------------------------------------------------

    def residual(self, name: str) -> Tensor | None:
        """The residual of a parameter, flat, in units of the gradient."""
        owed, carried = self.communicator_of(name).owed(name), self.state.carried.get(name)
        if owed is None or carried is None:
            return carried if owed is None else owed
        return owed + carried

    def state_dict(self) -> dict[str, Any]:
        """All state that this rank needs to resume exactly."""
        fields = saved_state.taken(str(self.method), self.transport, self.state, self._by_text())
        return digest.sealed(fields if self.tuner is None else {**fields, "auto": self.tuner.state_dict()})

    def load_state_dict(
        self,
        state: Saved | Sequence[Saved],
        sizes: Mapping[str, int] | None = None,
        *,
        partial: bool = False,
    ) -> None:
        """Restore this rank's `state_dict`, or convert a list of those of all ranks; if that raises, nothing changes.

        `sizes` are the parameters that exist here, if that is known, with their numbers of elements. `partial`: states may be missing
        from the list.
        """
        state = self.fitting(state, sizes, partial=partial)
        memories = {
            memory: state["parts"][text][label]
            for text, found in self._by_text().items()
            for label, memory in found.memories().items()
        }
        before = [_Contents(memory) for memory in memories]
        try:
            steps = {str(name): int(step) for name, step in state["steps"].items()}
            carried = {name: owed.detach().clone() for name, owed in state["carried"].items()}
            moved = {str(name) for name in state["moved"]}
            for memory, saved in memories.items():
                memory.load_state_dict(saved)
            for name, size in (sizes or {}).items():
                owed = [memory.residual(name) for memory in memories]
                saved_state.check_size(name, size, [*owed, carried.get(name)])
            if self.tuner is not None:
                self.in_use = self.tuner.load_state_dict(state["auto"])
                self.stats.choice = str(self.in_use)
        except BaseException as error:
            for contents in before:
                contents.put_back()
            known = (AttributeError, TypeError, ValueError, KeyError)
            if isinstance(error, known) and not isinstance(error, GraceError):
                raise saved_state.damaged(error) from error
            raise
        self.state.loss_scale = state["loss_scale"]
        self.state.steps, self.state.carried, self.state.moved = steps, carried, moved
        self.state.furthest = max(steps.values(), default=0)
        self.forget_buckets()
        self._routing.locate(steps)

    def fitting(
        self,
        state: Saved | Sequence[Saved],
        sizes: Mapping[str, int] | None = None,
        *,
        partial: bool = False,
    ) -> Saved:
        """The state to load on this rank; raises if `state` does not match. Changes nothing."""
        return saved_state.fitting(
            state, str(self.method), self._by_text(), self.transport, sizes, partial=partial
        )


class _Contents:
    """The attributes of a memory before it loads a state."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._attributes = memory, dict(vars(memory))
        # Memories that users define fill dictionaries of their own in place.
        self._dictionaries = {
            name: dict(value) for name, value in vars(memory).items() if isinstance(value, dict)
        }

    def put_back(self) -> None:
        vars(self._memory).update(self._attributes)
        for name, held in self._dictionaries.items():
            dictionary = self._attributes[name]
            dictionary.clear()
            dictionary.update(held)


def _warn_of_traffic(method: Single, communicator: Communicator) -> None:
    """Warn if a method that was not told how to exchange sends more than plain averaging would, among so many ranks."""
    times, transport = communicator.relative_traffic(), communicator.transport
    if times is None or times <= 1 or transport.rank != 0:
        return
    if isinstance(method, Named) and method.get("communicator") is None:
        warnings.warn(
            f"among {transport.size} ranks {method} sends about {times:.1f} times the bytes of plain averaging: every rank's "
            "payload goes to all others, and no other exchange carries it. Use grace.hierarchical(outer=...) to exchange once "
            "per node, or a method whose traffic does not grow with the number of ranks, such as grace.int8() or grace.topk().",
            stacklevel=5,
        )
