"""Registration of methods: what a `Compressor` subclass declares about itself.

This module holds only the table; `catalog` finds the built-in methods and their memories and communicators.
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
"""Parameters with fewer elements are sent uncompressed, unless a method overrides it."""


@dataclass(frozen=True)
class Parameter:
    """A setting of a method."""

    name: str
    default: Any
    annotation: str = "Any"


Stages = tuple[tuple[int, "dict[str, Any] | None"], ...]
"""First steps with the settings that change there; None means plain averaging."""


@dataclass(frozen=True)
class MethodInfo:
    """Metadata of a method."""

    name: str
    cls: Any
    """The compressor's class."""
    summary: str
    reference: str
    bits: str
    """Bits per element of the dense gradient, as text."""
    family: str
    memories: tuple[str, ...]
    """Valid memories; the first is the default."""
    communicators: tuple[tuple[int, str], ...]
    """Its default communicators: pairs of the smallest number of ranks and a name, in ascending order, the first from one
    rank on. Empty: `catalog.defaults_of` derives them from the compressor's properties."""
    dense_below: int
    """Parameters with fewer elements are sent dense (0: none)."""
    parameters: tuple[Parameter, ...]
    """Settings of the compressor."""
    schedule: Callable[..., Stages] | None
    """Returns the stages for given settings, for methods that change during training."""
    warn: Mapping[str, str]
    """Memories that are allowed, but known to diverge: name to reason."""

    def memory(self, name: str | None = None) -> str:
        """The memory for `name`; the default for None.

        Some methods require a memory for their momenta or factors. For those, `none` selects the method's own memory.
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
    communicator: str | Mapping[int, str] | None = None,
    dense_below: int = DENSE_BELOW,
    schedule: Callable[..., Stages] | None = None,
    warn: Mapping[str, str] | None = None,
) -> Callable[[T], T]:
    """Class decorator: give a `Compressor` a name, a constructor `grace.<name>(...)` and a text form.

    `memories`: valid memories, the default first. `communicator`: the default communicator; a mapping such as
    `{1: "allgather", 3: "alltoall"}` names the one to use from each number of ranks on.
    `dense_below`: parameters with fewer elements are sent uncompressed. `warn`: memories that are allowed but diverge.
    `schedule`: a function of settings that returns stages, for a method that changes during training.
    """
    if not isinstance(name, str) or not name.isidentifier():
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
    communicator: str | Mapping[int, str] | None = None,
    dense_below: int = DENSE_BELOW,
    schedule: Callable[..., Stages] | None = None,
    warn: Mapping[str, str] | None = None,
) -> MethodInfo:
    """Metadata of a compressor class; missing values are derived from its class attributes."""
    return MethodInfo(
        name=name,
        cls=cls,
        summary=summary or (inspect.getdoc(cls) or "").split("\n")[0],
        reference=reference,
        bits=bits,
        family=family,
        memories=tuple(memories or _suitable(cls)),
        communicators=_by_ranks(name, communicator),
        dense_below=dense_below,
        parameters=parameters(cls),
        schedule=schedule,
        warn=dict(warn or {}),
    )


def _suitable(cls: Any) -> tuple[str, ...]:
    """The memories of a compressor whose registration names none."""
    found = ("residual", "none") if cls.biased else ("none", "residual")
    if cls.elementwise:
        return found if cls.lossless else (*found, "loco")
    # Not if slices may be encoded again by their owners: what that loses would be missing in the estimate that all ranks keep.
    return (*found, "ef21") if cls.biased else found


def _by_ranks(name: str, given: str | Mapping[int, str] | None) -> tuple[tuple[int, str], ...]:
    """Default communicators in ascending order of the number of ranks from which they apply.

    >>> _by_ranks("mine", {3: "alltoall", 1: "allgather"})
    ((1, 'allgather'), (3, 'alltoall'))
    """
    if given is None:
        return ()
    rule = {1: given} if isinstance(given, str) else given
    if min(rule, default=0) != 1:
        raise ConfigError(
            f"{name}: communicator={dict(rule)!r} names no communicator for one rank; give numbers of ranks from 1 on, as "
            "in {1: 'allgather', 3: 'alltoall'}."
        )
    return tuple(sorted(rule.items()))


def unregister(name: str) -> None:
    """Remove a method that `register` added."""
    methods.pop(name, None)


_INHERITED = ("average", "tensors_size_are_same")
"""Arguments of `Compressor` itself, which are not settings of a method."""


def parameters(source: Any) -> tuple[Parameter, ...]:
    """The settings of a class or function, from its signature."""
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
    """The error for an unknown name, with the closest valid one."""
    names = list(known)
    near = difflib.get_close_matches(str(name).lower(), names, n=1)
    hint = f": did you mean {near[0]!r}? Known" if near else "; known"
    return ConfigError(f"unknown {kind} {name!r}{hint}: {', '.join(names)}.")
