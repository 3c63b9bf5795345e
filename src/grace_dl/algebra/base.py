"""The base class of methods: immutable values without state."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from ..communicator.base import Communicator
from ..communicator.state import State
from ..compressor.base import Compressor
from ..errors import ConfigError
from ..transport import Transport


class Method:
    """How gradients are compressed and exchanged: compressor, error memory, communicator and their settings.

    Build one with `grace.<name>(...)` or `grace.parse("<text>")`, and pass it to `grace.attach`.
    """

    def resolve(self, name: str, step: int) -> Single:
        """The method of one parameter at a step."""
        raise NotImplementedError

    def stage(self, step: int) -> Hashable:
        """An index that changes exactly at the steps where `resolve` may change."""
        return None

    def parts(self) -> Iterator[Single]:
        """Every method that `resolve` may return."""
        raise NotImplementedError


class Single(Method):
    """One compressor with its memory and communicator."""

    def resolve(self, name: str, step: int) -> Single:
        return self

    def parts(self) -> Iterator[Single]:
        yield self

    @property
    def codec(self) -> Single:
        """The method that does the compressing: its own, or that of a part."""
        return self

    def build(
        self, transport: Transport, state: State, way: type[Communicator] | None = None
    ) -> Communicator:
        """A communicator that runs the method among the ranks of `transport`, with empty state.

        `way`: the communicator that the target requires, instead of the method's own; raises if it does not support it.
        """
        raise NotImplementedError


class Composition(Method):
    """A method made of others."""

    @property
    def methods(self) -> tuple[Method, ...]:
        """What it is made of."""
        raise NotImplementedError

    def parts(self) -> Iterator[Single]:
        yield from dict.fromkeys(part for method in self.methods for part in method.parts())


class ByName(Composition):
    """A composition that has one method for each parameter."""

    def method_of(self, name: str) -> Method:
        """The method of a parameter."""
        raise NotImplementedError

    def resolve(self, name: str, step: int) -> Single:
        return self.method_of(name).resolve(name, step)

    def stage(self, step: int) -> Hashable:
        return tuple(method.stage(step) for method in self.methods)


def check_method(method: Any) -> Method:
    """Return `method` if it is one; raise otherwise."""
    if isinstance(method, Method):
        return method
    if isinstance(method, type):
        hint = f"pass an object of it, as in grace.custom({method.__name__}())"
    elif isinstance(method, Compressor):
        hint = f"wrap it, as in grace.custom({type(method).__name__}(...))"
    elif callable(method) and hasattr(method, "__name__"):
        hint = f"call it, as in grace.{method.__name__}()"
    else:
        hint = "pass one, such as grace.topk(0.01)"
    raise ConfigError(f"{method!r} is no method; {hint}.")


def at(stages: tuple[tuple[int, Any], ...], step: int) -> Any:
    """The value that applies at a step, from values with their first steps."""
    return next(value for first, value in reversed(stages) if first <= step)
