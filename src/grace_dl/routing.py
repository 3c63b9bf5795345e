"""Routing: which communicator has a parameter's state, and how buckets are divided among communicators."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from .algebra.base import Method, Single
from .communicator.base import Communicator
from .pipeline.bucket import Bucket
from .pipeline.driver import Program


@dataclass(slots=True)
class _Route:
    """How a bucket is divided among communicators, and the names and stage for which this is valid."""

    names: tuple[str, ...]
    stage: Hashable
    places: list[tuple[Single, list[int]]]


class Routing:
    """The communicators of a session, one for each single method, and the parameters that each has."""

    def __init__(self) -> None:
        self.communicators: dict[Single, Communicator] = {}
        self._homes: dict[str, Single] = {}
        self._routes: dict[Hashable, _Route] = {}

    def homes(self) -> Iterator[tuple[str, Communicator]]:
        """The parameters, each with the communicator that has its state."""
        return ((name, self.communicators[home]) for name, home in self._homes.items())

    def communicator_of(self, name: str, method: Method, step: int) -> Communicator:
        """The communicator that has a parameter's state, or will have it at this step."""
        return self.communicators[self._homes.get(name) or method.resolve(name, step)]

    def programs(self, bucket: Bucket, method: Method, step: int) -> list[Program]:
        """The programs that exchange a bucket: one for each single method of its parameters at this step."""
        route = self._route(bucket, method, step)
        if len(route.places) == 1:
            return [self.communicators[route.places[0][0]].program(bucket)]
        return [
            self.communicators[part].program(
                Bucket(
                    (bucket.key, place),
                    [bucket.segments[i] for i in members],
                    compress_all=bucket.compress_all,
                )
            )
            for place, (part, members) in enumerate(route.places)
        ]

    def _route(self, bucket: Bucket, method: Method, step: int) -> _Route:
        names, stage = tuple([segment.name for segment in bucket.segments]), method.stage(step)
        route = self._routes.get(bucket.key)
        if route is None or route.names != names or route.stage != stage:
            places: dict[Single, list[int]] = {}
            for place, name in enumerate(names):
                part = method.resolve(name, step)
                self._move(name, part)
                places.setdefault(part, []).append(place)
            route = self._routes[bucket.key] = _Route(names, stage, list(places.items()))
        return route

    def _move(self, name: str, part: Single) -> None:
        home = self._homes.get(name)
        if home is not None and home != part:
            self.communicators[part].take(name, self.communicators[home])
        self._homes[name] = part

    def resolve_anew(self, method: Method, step: int) -> None:
        """Move the state of every parameter to the communicator of its present method."""
        self._routes.clear()
        for name in list(self._homes):
            self._move(name, method.resolve(name, step))

    def locate(self, names: Iterable[str]) -> None:
        """Find the communicators that have the state of these parameters, after state was loaded."""
        self._homes = {
            name: part
            for part, communicator in self.communicators.items()
            for memory in communicator.memories().values()
            for name in names
            if memory.keys_of(name)
        }

    def forget_buckets(self) -> None:
        """Drop the plans of buckets, because buckets are rebuilt."""
        self._routes.clear()
        for communicator in self.communicators.values():
            communicator.forget_plans()

    def clear(self) -> None:
        """Drop everything."""
        self.communicators.clear()
        self._homes.clear()
        self._routes.clear()
