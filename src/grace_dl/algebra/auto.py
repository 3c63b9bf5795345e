"""`grace.auto(...)`: a method that chooses among others while it runs, by measured step times."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ConfigError
from ..settings import whole
from .base import ByName, Composition, Method, Single, check_method
from .named import build

DEFAULT_ALLOW: tuple[tuple[str, dict[str, float]], ...] = (
    ("bf16", {}),
    ("int8", {}),
    ("topk", {"ratio": 0.01}),
    ("powersgd", {"rank": 4}),
)
"""Methods whose accuracy was compared with float32; docs/benchmarks.md has the tables."""
EVERY = 1000
"""Steps after which alternatives are compared again, even if nothing seems to have changed."""


@dataclass(frozen=True, repr=False)
class Auto(Composition):
    """Plain averaging, or one of the allowed methods where it makes steps faster.

    Only a handle knows what was chosen, so a parameter has no method before.
    """

    allow: tuple[Method, ...]
    every: int = EVERY

    @property
    def plain(self) -> Single:
        """Plain averaging, which is always allowed."""
        return build("none")

    @property
    def methods(self) -> tuple[Method, ...]:
        """Everything that may be chosen, plain averaging first."""
        return (self.plain, *self.allow)

    def resolve(self, name: str, step: int) -> Single:
        raise ConfigError(
            f"{self} has no method for {name!r} by itself: its handle chooses, and handle.explain() says what."
        )

    def __str__(self) -> str:
        items = [] if self.allow == _default() else [str(method) for method in self.allow]
        items += [f"every={self.every}"] if self.every != EVERY else []
        return f"auto({'; '.join(items)})" if items else "auto"

    def __repr__(self) -> str:
        allow = f"({', '.join(map(repr, self.allow))}{',' * (len(self.allow) == 1)})"
        given = [] if self.allow == _default() else [f"allow={allow}"]
        given += [f"every={self.every}"] if self.every != EVERY else []
        return f"grace.auto({', '.join(given)})"


@dataclass(frozen=True)
class Choice(ByName):
    """What was chosen: a method for every parameter, with exceptions by exact name."""

    default: Method
    exceptions: tuple[tuple[Method, tuple[str, ...]], ...] = ()

    @functools.cached_property
    def _named(self) -> dict[str, Method]:
        return {name: method for method, names in self.exceptions for name in names}

    def method_of(self, name: str) -> Method:
        return self._named.get(name, self.default)

    @property
    def methods(self) -> tuple[Method, ...]:
        return (self.default, *(method for method, _ in self.exceptions))

    def __str__(self) -> str:
        counted = [f"{m} for {len(names)} parameter{'s' * (len(names) > 1)}" for m, names in self.exceptions]
        return f"{'; '.join(counted)}; {self.default} for the others" if counted else str(self.default)


def auto(allow: Sequence[Method] | None = None, *, every: int = EVERY) -> Method:
    """Choose what makes training steps fastest: plain averaging, or one of the methods in `allow`.

    A handle averages plainly in its first steps, measures backward pass, codecs and link, predicts every alternative, and
    tries the best in turns with plain averaging. It keeps what is measurably faster, and looks again when step times or the
    link change, or after `every` steps. All ranks choose alike, residuals survive every change, and `handle.explain()` says
    what was chosen and why. For DDP models and optimizers.

    allow: methods to choose from, besides plain averaging. By default bf16, int8, topk:0.01 and powersgd:4.
    every: steps after which alternatives are compared again, even if nothing seems to have changed.

    >>> import grace_dl as grace
    >>> grace.auto(allow=(grace.int8(), grace.powersgd(rank=4))) == grace.parse("auto(int8; powersgd:4)")
    True
    """
    if allow is None:
        chosen = _default()
    else:
        if isinstance(allow, (str, Method)) or not isinstance(allow, Sequence):
            raise ConfigError(
                f"allow={allow!r} must list methods, as in allow=(grace.int8(), grace.powersgd(rank=4))."
            )
        chosen = tuple(dict.fromkeys(as_part(method, "auto()") for method in allow))
        chosen = tuple(method for method in chosen if method != build("none"))
        if not chosen:
            raise ConfigError(
                "auto() has nothing to choose from: allow at least one method besides none, as in allow=(grace.int8(),)."
            )
    return Auto(chosen, whole("every", every, "steps between two comparisons", least=100))


def as_part(method: object, within: str) -> Method:
    """A method as a part of another one; raises for `auto`, which must choose for all parameters and steps."""
    found = check_method(method)
    if isinstance(found, Auto):
        raise ConfigError(
            f"auto cannot be a part of {within}: it measures whole steps, and chooses for all parameters itself; attach it "
            "alone, or name a method in its place."
        )
    return found


def _default() -> tuple[Method, ...]:
    return tuple(build(name, **settings) for name, settings in DEFAULT_ALLOW)
