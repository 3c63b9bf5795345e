"""Registration of methods: what a `Compressor` subclass declares about itself.

This module only keeps the table; `catalog` finds the built-in methods and the memories and communicators they go with.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import ConfigError

T = TypeVar("T", bound=type)

DENSE_BELOW = 1024
"""Parameters with fewer elements travel uncompressed, unless a method says otherwise."""


@dataclass(frozen=True)
class Parameter:
    """A setting of a method."""

    name: str
    default: Any
    annotation: str = "Any"


Stages = tuple[tuple[int, "dict[str, Any] | None"], ...]
"""First steps with the settings that change there; None stands for plain averaging."""


@dataclass(frozen=True)
class MethodInfo:
    """What is known of a method without running it."""

    name: str
    cls: Any
    """The compressor's class."""
    summary: str
    reference: str
    bits: str
    """Wire size per element of the dense gradient, for people."""
    family: str
    memories: tuple[str, ...]
    """Memories it may be paired with; the first is its default."""
    communicator: str
    """Its default communicator."""
    dense_below: int
    """Parameters with fewer elements travel dense (0: none do)."""
    parameters: tuple[Parameter, ...]
    """Settings of the compressor."""
    schedule: Callable[..., Stages] | None
    """Turns settings of the method into stages, for methods that change during training."""
    warn: Mapping[str, str]
    """Memories that are allowed, but known to diverge: name to reason."""

    def memory(self, name: str | None = None) -> str:
        """The memory to use where `name` is asked for; the default for None.

        Momenta and factors are part of some methods. Scripts that ask for no memory there mean the method's own.
        """
        if name is None or (name == "none" and "none" not in self.memories):
            return self.memories[0]
        if name not in self.memories:
            raise ConfigError(
                f"{self.name} does not work with memory {name!r}. It works with: {', '.join(self.memories)}."
            )
        return name


methods: dict[str, MethodInfo] = {}
"""The registered methods by name."""


def register(
    name: str,
    *,
    summary: str = "",
    reference: str = "",
    bits: str = "",
    family: str = "",
    memories: Iterable[str] | None = None,
    communicator: str | None = None,
    dense_below: int = DENSE_BELOW,
    schedule: Callable[..., Stages] | None = None,
    warn: Mapping[str, str] | None = None,
) -> Callable[[T], T]:
    """Class decorator: give a `Compressor` a name, a constructor `grace.<name>(...)` and a text form.

    `memories`: those it may be paired with, the default first. `communicator`: its default way of exchange.
    `dense_below`: parameters with fewer elements travel uncompressed. `warn`: memories that are allowed but diverge.
    `schedule`: a function of settings that returns stages, for a method that changes during training.
    """
    if not name.isidentifier():
        raise ConfigError(
            f"{name!r} cannot name a method: use letters, digits and underscores, as in 'my_method'."
        )

    if name in sys.modules[__package__]._LAZY:
        raise ConfigError(
            f"a method cannot be named {name!r}: grace_dl.{name} is something else; choose another name."
        )

    def decorate(cls: T) -> T:
        known = methods.get(name)
        if known is not None and known.cls.__qualname__ != cls.__qualname__:
            raise ConfigError(
                f"a method named {name!r} is registered already ({known.cls.__module__}.{known.cls.__qualname__}); "
                "choose another name."
            )
        methods[name] = describe(
            name, cls, summary, reference, bits, family, memories, communicator, dense_below, schedule, warn
        )
        return cls

    return decorate


def describe(
    name: str,
    cls: Any,
    summary: str = "",
    reference: str = "",
    bits: str = "",
    family: str = "",
    memories: Iterable[str] | None = None,
    communicator: str | None = None,
    dense_below: int = DENSE_BELOW,
    schedule: Callable[..., Stages] | None = None,
    warn: Mapping[str, str] | None = None,
) -> MethodInfo:
    """What is known of a compressor's class; what is not given follows from its declared facts."""
    return MethodInfo(
        name=name,
        cls=cls,
        summary=summary or (inspect.getdoc(cls) or "").split("\n")[0],
        reference=reference,
        bits=bits,
        family=family,
        memories=tuple(memories or (("residual", "none") if cls.biased else ("none", "residual"))),
        communicator=communicator or ("allreduce" if cls.sums else "allgather"),
        dense_below=dense_below,
        parameters=parameters(cls),
        schedule=schedule,
        warn=dict(warn or {}),
    )


def unregister(name: str) -> None:
    """Remove a method that `register` added."""
    methods.pop(name, None)


_INHERITED = ("average", "tensors_size_are_same")
"""Arguments of `Compressor` itself, which are no settings of a method."""


def parameters(source: Any) -> tuple[Parameter, ...]:
    """The settings that a class or function takes, read from its signature."""
    return tuple(
        Parameter(p.name, None if p.default is p.empty else p.default, _annotation(p))
        for p in inspect.signature(source).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in _INHERITED
    )


def _annotation(parameter: inspect.Parameter) -> str:
    found = parameter.annotation
    if found is parameter.empty:
        return "Any"
    return found if isinstance(found, str) else getattr(found, "__name__", str(found))


def unknown(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not in a table, with the nearest one that is."""
    names = list(known)
    near = difflib.get_close_matches(str(name).lower(), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"unknown {kind} {name!r}: {hint}Known: {', '.join(names)}.")
