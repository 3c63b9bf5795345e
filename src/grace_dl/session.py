"""A running method: its state, its communicators and the ranks it exchanges with. A handle owns one session."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .algebra.base import Method, Single
from .communicator.base import Communicator
from .communicator.state import State
from .errors import StateError
from .memory.base import Memory
from .pipeline.bucket import Bucket, single
from .pipeline.driver import Program, StepDriver
from .telemetry import Stats
from .transport import Transport

_FORMAT = 2
_SAVED = ("rank", "world_size", "loss_scale", "steps", "carried", "parts")


@dataclass(slots=True)
class _Route:
    """How a bucket is divided among communicators, and the names and stage for which this is valid."""

    names: tuple[str, ...]
    stage: Hashable
    places: list[tuple[Single, list[int]]]


class Session:
    """Runs `method` among the ranks of `transport`. All ranks create their session together, with the same method.

    The method is resolved for each parameter at each step. Where the result changes (a schedule, `switch`), the
    parameter's state moves to the new communicator, and no residual is lost.
    """

    def __init__(self, method: Method, transport: Transport) -> None:
        self.transport = transport
        self.stats = Stats()
        self.state = State()
        self._communicators: dict[Single, Communicator] = {}
        self._homes: dict[str, Single] = {}
        self._routes: dict[Hashable, _Route] = {}
        self.method = method
        self._communicators = self._open(method)

    def _open(self, method: Method) -> dict[Single, Communicator]:
        """The communicators of a method; existing ones are reused. Changes nothing but the transport."""
        opened = {
            part: self._communicators.get(part) or part.build(self.transport, self.state)
            for part in method.parts()
        }
        self.transport.open(max(communicator.channels for communicator in opened.values()))
        return opened

    def communicator_of(self, name: str) -> Communicator:
        """The communicator that holds a parameter's state, or will hold it at the next step."""
        return self._communicators[self._homes.get(name) or self.method.resolve(name, self.state.furthest)]

    def memories(self) -> dict[str, Memory]:
        """All memories, by the text of their method and their label within it."""
        return {
            f"{text}/{label}": memory
            for part, text in self._texts().items()
            for label, memory in self._communicators[part].memories().items()
        }

    def _texts(self) -> dict[Single, str]:
        """The parts of the method, each with a unique text (equal texts are numbered)."""
        texts: dict[Single, str] = {}
        for part in self._communicators:
            same = sum(str(other) == str(part) for other in texts)
            texts[part] = f"{part} #{same + 1}" if same else str(part)
        return texts

    @property
    def whole_buckets(self) -> bool:
        """Whether the method encodes whole buckets, which must then have no gaps."""
        return all(found.compressor.whole_bucket for found in self._communicators.values())

    # Steps --------------------------------------------------------------------------------------------

    def driver(self) -> StepDriver:
        """Start a training step; returns the driver for all its buckets."""
        self._follow()
        return StepDriver(self, self.state.furthest)

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

    def programs(self, bucket: Bucket, step: int) -> list[Program]:
        """The programs that exchange a bucket: one for each method of its parameters at this step."""
        route = self._route(bucket, step)
        if len(route.places) == 1:
            return [self._communicators[route.places[0][0]].program(bucket)]
        return [
            self._communicators[part].program(
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
            self._communicators[part].take(name, self._communicators[home])
        self._homes[name] = part

    # Change -------------------------------------------------------------------------------------------

    def switch(self, method: Method) -> None:
        """Use another method from the next step on; residuals carry over. All ranks switch between the same steps."""
        opened = self._open(method)
        self.method = method
        self._routes.clear()
        # Move the state of the previous method now, so that its memory is freed.
        self._communicators = {**self._communicators, **opened}
        for name in list(self._homes):
            self._move(name, method.resolve(name, self.state.furthest))
        self._communicators = opened

    def rejoin(self, transport: Transport) -> None:
        """Continue with different ranks, as after an elastic reset: state starts fresh, but residuals carry over."""
        for name, home in self._homes.items():
            self.state.carry(name, self._communicators[home].owed(name))
        self.state.steps.clear()
        self.state.furthest = 0
        self.transport = transport
        self._communicators.clear()
        self._homes.clear()
        self._routes.clear()
        self._communicators = self._open(self.method)

    def forget_buckets(self) -> None:
        """Drop the plans of buckets, because buckets are rebuilt."""
        self._routes.clear()
        for communicator in self._communicators.values():
            communicator.forget_plans()

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
        self._communicators.clear()
        self._routes.clear()
        self._homes.clear()
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
        return {
            "format": _FORMAT,
            "method": str(self.method),
            "rank": self.transport.rank,
            "world_size": self.transport.size,
            "loss_scale": self.state.loss_scale,
            "steps": dict(self.state.steps),
            "carried": {name: owed.clone() for name, owed in self.state.carried.items()},
            "parts": {
                text: {
                    label: memory.state_dict()
                    for label, memory in self._communicators[part].memories().items()
                }
                for part, text in self._texts().items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the `state_dict` of the same rank; changes nothing if it does not match."""
        self.check_state(state)
        memories = {
            memory: state["parts"][text][label]
            for part, text in self._texts().items()
            for label, memory in self._communicators[part].memories().items()
        }
        before = {memory: memory.state for memory in memories}
        try:
            steps = {str(name): int(step) for name, step in state["steps"].items()}
            carried = {name: owed.detach().clone() for name, owed in state["carried"].items()}
            for memory, saved in memories.items():
                memory.load_state_dict(saved)
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            for memory, held in before.items():
                memory.state = held
            raise StateError(f"the saved state is damaged ({error!r}); no state_dict() made it.") from error
        self.state.loss_scale = state["loss_scale"]
        self.state.steps, self.state.carried = steps, carried
        self.state.furthest = max(steps.values(), default=0)
        self._routes.clear()
        self._homes = {
            name: part
            for part, communicator in self._communicators.items()
            for memory in communicator.memories().values()
            for name in steps
            if memory.keys_of(name)
        }

    def check_state(self, state: Any) -> None:
        """Raise unless `state` is a matching saved state; changes nothing."""
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
        here = {text: sorted(self._communicators[part].memories()) for part, text in self._texts().items()}
        there = {text: sorted(memories) for text, memories in state["parts"].items()}
        if here != there:
            raise StateError(f"the saved state holds memories {there}, but {self.method} has {here}.")
