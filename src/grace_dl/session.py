"""A method at work: its state, its communicators and the ranks it exchanges with. A handle owns one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .algebra.base import Method, Single
from .communicator.base import Communicator
from .communicator.state import State
from .errors import StateError
from .pipeline.bucket import Bucket, single
from .pipeline.driver import Program, StepDriver
from .telemetry import Stats
from .transport import Transport

_FORMAT = 2
_SAVED = ("rank", "world_size", "loss_scale", "steps", "carried", "parts")


@dataclass(slots=True)
class _Route:
    """How a bucket was divided among communicators, and for which names and stage that holds."""

    names: tuple[str, ...]
    stage: Hashable
    places: list[tuple[Single, list[int]]]


class Session:
    """Runs `method` among the ranks of `transport`. All ranks make theirs together, with the same method.

    A method is resolved for each parameter at each step; where the answer changes (a schedule, `switch`), the
    parameter's state moves from one communicator to the next, and nothing that is owed is lost.
    """

    def __init__(self, method: Method, transport: Transport) -> None:
        self.transport = transport
        self.stats = Stats()
        self.state = State()
        self._communicators: dict[Single, Communicator] = {}
        self._homes: dict[str, Single] = {}
        self._routes: dict[Hashable, _Route] = {}
        self.method = method
        self._open(method)

    def _open(self, method: Method) -> None:
        self.transport.open(max(self._communicator(part).channels for part in method.parts()))

    def _communicator(self, part: Single) -> Communicator:
        found = self._communicators.get(part)
        if found is None:
            found = self._communicators[part] = part.build(self.transport, self.state)
        return found

    def communicator_of(self, name: str) -> Communicator:
        """The communicator that holds a parameter's state, or will at its next step."""
        part = self._homes.get(name) or self.method.resolve(name, self.state.furthest)
        return self._communicator(part)

    @property
    def whole_buckets(self) -> bool:
        """Whether the method takes buckets as a whole, which must then have no gaps."""
        return all(self._communicator(part).compressor.whole_bucket for part in self.method.parts())

    # Steps --------------------------------------------------------------------------------------------

    def driver(self) -> StepDriver:
        """A new step of training, for all its buckets."""
        if self.transport.stale:
            self.rejoin(self.transport.renew())
        return StepDriver(self, self.state.furthest)

    def step(self, tensor: Tensor, name: str) -> Tensor:
        """Exchange one tensor with all ranks; returns the result, of the same shape and dtype."""
        return self.receive(*self.send(tensor, name))

    def send(self, tensor: Tensor, name: str) -> tuple[StepDriver, Bucket]:
        """Compress and send; give what is returned to `receive`."""
        bucket = single(tensor, name)
        driver = StepDriver(self, self.state.step(name))
        if bucket.segments[0].flat.numel():
            driver.launch(bucket)
        return driver, bucket

    def receive(self, driver: StepDriver, bucket: Bucket) -> Tensor:
        """Wait for what `send` began; returns the result."""
        driver.finish()
        return bucket.segments[0].view

    def programs(self, bucket: Bucket, step: int) -> list[Program]:
        """The programs that carry a bucket: one for each method that its parameters have at this step."""
        route = self._route(bucket, step)
        if len(route.places) == 1:
            return [self._communicator(route.places[0][0]).program(bucket)]
        return [
            self._communicator(part).program(
                Bucket(
                    (bucket.key, place),
                    [bucket.segments[i] for i in members],
                    compress_all=bucket.compress_all,
                )
            )
            for place, (part, members) in enumerate(route.places)
        ]

    def _route(self, bucket: Bucket, step: int) -> _Route:
        names, stage = tuple([segment.name for segment in bucket.segments]), self.method.stage(step)
        route = self._routes.get(bucket.key)
        if route is None or route.names != names or route.stage != stage:
            places: dict[Single, list[int]] = {}
            for place, name in enumerate(names):
                part = self.method.resolve(name, step)
                self._move(name, part)
                places.setdefault(part, []).append(place)
            route = self._routes[bucket.key] = _Route(names, stage, list(places.items()))
        return route

    def _move(self, name: str, part: Single) -> None:
        home = self._homes.get(name)
        if home is not None and home != part:
            self._communicator(part).take(name, self._communicator(home))
        self._homes[name] = part

    # Change -------------------------------------------------------------------------------------------

    def switch(self, method: Method) -> None:
        """Use another method from the next step on; what is owed is paid by it. All ranks switch between the same steps."""
        self._open(method)
        self.method = method
        self._routes.clear()
        # State of the former method moves now, so that nothing of it is left in memory.
        for name in list(self._homes):
            self._move(name, method.resolve(name, self.state.furthest))
        kept = {*method.parts(), *self._homes.values()}
        self._communicators = {part: found for part, found in self._communicators.items() if part in kept}

    def rejoin(self, transport: Transport) -> None:
        """Go on among other ranks, as after an elastic reset: everyone begins anew, but still pays what it owes."""
        for name, home in self._homes.items():
            owed = self._communicators[home].owed(name)
            if owed is not None:
                carried = self.state.carried.get(name)
                self.state.carried[name] = owed.detach().clone() if carried is None else carried + owed
        self.state.steps.clear()
        self.state.furthest = 0
        self.transport = transport
        self._communicators.clear()
        self._homes.clear()
        self._routes.clear()
        self._open(self.method)

    def forget_buckets(self) -> None:
        """Drop what was prepared for buckets, because they are made anew."""
        self._routes.clear()
        for communicator in self._communicators.values():
            communicator.forget_plans()

    def set_loss_scale(self, scale: float) -> None:
        """Gradients are multiplied by `scale` from now on; state kept so far follows."""
        before = self.state.loss_scale
        if before is not None and scale != before:
            for communicator in self._communicators.values():
                for memory in communicator.memories().values():
                    memory.rescale_(scale / before)
            self.state.rescale(scale / before)
        self.state.loss_scale = scale

    def close(self) -> None:
        """Release state, buffers and channels."""
        self._communicators.clear()
        self._routes.clear()
        self._homes.clear()
        self.transport.close()

    # Checkpoints --------------------------------------------------------------------------------------

    def residual(self, name: str) -> Tensor | None:
        """What is still owed for a parameter, flat, in units of the gradient."""
        owed, carried = self.communicator_of(name).owed(name), self.state.carried.get(name)
        if owed is None or carried is None:
            return carried if owed is None else owed
        return owed + carried

    def state_dict(self) -> dict[str, Any]:
        """All that this rank needs to go on exactly where it is."""
        return {
            "format": _FORMAT,
            "method": str(self.method),
            "rank": self.transport.rank,
            "world_size": self.transport.size,
            "loss_scale": self.state.loss_scale,
            "steps": dict(self.state.steps),
            "carried": {name: owed.clone() for name, owed in self.state.carried.items()},
            "parts": {
                str(part): {label: memory.state_dict() for label, memory in communicator.memories().items()}
                for part, communicator in self._communicators.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict` of the same rank; nothing is changed where it does not fit."""
        parts = self._check(state)
        self._routes.clear()
        self._homes.clear()
        self.state.loss_scale = state["loss_scale"]
        self.state.steps = dict(state["steps"])
        self.state.furthest = max(self.state.steps.values(), default=0)
        self.state.carried = {name: owed.clone() for name, owed in state["carried"].items()}
        for part in self._communicators:
            saved = parts.get(part, {})
            for label, memory in self._communicators[part].memories().items():
                memory.load_state_dict(saved.get(label, {}))
        for name in self.state.steps:
            for part, communicator in self._communicators.items():
                if any(memory.keys_of(name) for memory in communicator.memories().values()):
                    self._homes[name] = part

    def _check(self, state: Any) -> dict[Single, Mapping[str, Any]]:
        """The saved memories by method, once all of `state` is known to fit."""
        if not isinstance(state, Mapping):
            raise StateError(f"a {type(state).__name__} is no saved state; pass what state_dict() returned.")
        for field, mine in (("format", _FORMAT), ("method", str(self.method))):
            if state.get(field) != mine:
                raise StateError(
                    f"the saved state has {field}={state.get(field)!r}, this handle has {mine!r}; attach the method that "
                    "was saved, load, and then switch() to another."
                )
        missing = [field for field in _SAVED if field not in state]
        if missing:
            raise StateError(
                f"the saved state lacks {', '.join(missing)}: it is damaged, or no state_dict() made it."
            )
        saved = (state["rank"], state["world_size"])
        if saved != (self.transport.rank, self.transport.size):
            raise StateError(
                f"this is the state of rank {saved[0]} of {saved[1]}, but here is rank {self.transport.rank} of "
                f"{self.transport.size}; every rank saves and loads its own."
            )
        known = {str(part): part for part in self.method.parts()}
        for text, memories in state["parts"].items():
            if text not in known:
                raise StateError(
                    f"the saved state holds memories of {text!r}, which {self.method} has no part of."
                )
            labels = set(self._communicator(known[text]).memories())
            if set(memories) != labels:
                raise StateError(
                    f"the saved state holds memories {sorted(memories)} for {text!r}, which has {sorted(labels)}."
                )
        return {known[text]: memories for text, memories in state["parts"].items()}
