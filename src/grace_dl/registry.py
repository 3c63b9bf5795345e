"""The one table of methods, memories and communicators.

`grace_from_params`, the command line, the documentation and the contract tests all read it. A built-in
method and a user's own get in by the same decorator:

>>> from grace_dl import Compressor, register
>>> @register("half-away", summary="Sends the tensor halved.", reference="an example")
... class HalfCompressor(Compressor):
...     def compress(self, tensor, name):
...         return [tensor / 2], tensor.shape
...     def decompress(self, payload, ctx):
...         return payload[0].view(ctx) * 2
>>> from grace_dl import method
>>> method("half-away").communicators
('allgather', 'broadcast')
>>> unregister("half-away")
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import ConfigError

if TYPE_CHECKING:
    from .communicator.base import Communicator
    from .compressor.base import Compressor
    from .memory.base import Memory

T = TypeVar("T", bound="type[Compressor]")

BUILTIN = (
    "none fp16 bf16 fp8 int8 int4 u8bit natural inceptionn qsgd terngrad onebit signsgd signum efsignsgd "
    "sketch eden topk randomk threshold dgc adaq powersgd acpsgd"
).split()
"""Built-in methods in the order they are listed; each lives in `compressor/<name>.py`."""

_MEMORIES = {
    "none": "none:NoneMemory",
    "residual": "residual:ResidualMemory",
    "dgc": "dgc:DgcMemory",
    "efsignsgd": "efsignsgd:EFSignSGDMemory",
    "signum": "signum:SignumMemory",
    "powersgd": "powersgd:PowerSGDMemory",
    "acpsgd": "acpsgd:ACPSGDMemory",
}
_COMMUNICATORS = {
    "allreduce": "allreduce:Allreduce",
    "allgather": "allgather:Allgather",
    "broadcast": "broadcast:Broadcast",
    "alltoall": "alltoall:Alltoall",
}


@dataclass(frozen=True)
class Parameter:
    """A setting of a method."""

    name: str
    default: Any


@dataclass(frozen=True)
class Method:
    """What is known of a method without running it."""

    name: str
    cls: type[Compressor]
    summary: str
    reference: str
    bits: str
    """Wire size per element of the dense gradient, for people."""
    memories: tuple[str, ...]
    """Memories it may be paired with; the first is its default."""
    communicator: str
    """Its default communicator."""
    dense_below: int
    """Parameters with fewer elements travel dense (0: none do)."""
    parameters: tuple[Parameter, ...]
    warn: dict[str, str]
    """Memories that are allowed, but known to go wrong: name to reason."""

    @property
    def communicators(self) -> tuple[str, ...]:
        """The communicators its payloads can go through, from its declared facts."""
        facts = self.cls
        return tuple(
            name
            for name, able in (
                ("allreduce", facts.sums),
                ("allgather", not facts.multi_round),
                ("broadcast", not facts.multi_round),
                ("alltoall", facts.elementwise),
            )
            if able
        )


_methods: dict[str, Method] = {}

DENSE_BELOW = 1024


def register(
    name: str,
    *,
    summary: str = "",
    reference: str = "",
    bits: str = "",
    memories: Iterable[str] | None = None,
    communicator: str | None = None,
    dense_below: int = DENSE_BELOW,
    warn: dict[str, str] | None = None,
) -> Callable[[T], T]:
    """Class decorator: make a `Compressor` known by name to everything that reads the table."""

    def decorate(cls: T) -> T:
        known = _methods.get(name)
        if known is not None and known.cls.__qualname__ != cls.__qualname__:
            raise ConfigError(
                f"a method named {name!r} is registered already ({known.cls.__module__}.{known.cls.__qualname__}); "
                "choose another name."
            )
        default = communicator or ("allreduce" if cls.sums else "allgather")
        partners = (
            tuple(memories) if memories else (("residual", "none") if cls.biased else ("none", "residual"))
        )
        _methods[name] = Method(
            name=name,
            cls=cls,
            summary=summary or (inspect.getdoc(cls) or "").split("\n")[0],
            reference=reference,
            bits=bits,
            memories=partners,
            communicator=default,
            dense_below=dense_below,
            parameters=parameters(cls),
            warn=dict(warn or {}),
        )
        return cls

    return decorate


def unregister(name: str) -> None:
    """Forget a method that `register` made known."""
    if name in BUILTIN:
        raise ConfigError(f"{name!r} is built in and cannot be unregistered.")
    _methods.pop(name, None)


def parameters(cls: type) -> tuple[Parameter, ...]:
    """The settings a class takes, with their defaults, read from its signature."""
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]
    return tuple(
        Parameter(p.name, None if p.default is p.empty else p.default)
        for p in list(signature.parameters.values())[1:]
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    )


def methods() -> dict[str, Method]:
    """All methods by name: the built-in ones in their order, then users' own."""
    for name in BUILTIN:
        importlib.import_module(f"grace_dl.compressor.{name}")
    order = {name: place for place, name in enumerate(BUILTIN)}
    return dict(sorted(_methods.items(), key=lambda item: order.get(item[0], len(order))))


def method(name: str) -> Method:
    """One method by name."""
    if name in BUILTIN:
        importlib.import_module(f"grace_dl.compressor.{name}")
    if name not in _methods:
        raise unknown("compressor", name, methods())
    return _methods[name]


def method_of(compressor: Compressor) -> Method:
    """The record of a compressor object; one is made up for a class that was never registered."""
    for record in _methods.values():
        if record.cls is type(compressor):
            return record
    cls = type(compressor)
    memories = ("none", "residual") if not cls.biased else ("residual", "none")
    return Method(
        name=cls.__name__,
        cls=cls,
        summary=(inspect.getdoc(cls) or "").split("\n")[0],
        reference="",
        bits="",
        memories=memories,
        communicator="allreduce" if cls.sums else "allgather",
        dense_below=DENSE_BELOW,
        parameters=parameters(cls),
        warn={},
    )


def memory_class(name: str) -> type[Memory]:
    """A memory's class by name."""
    return _load("memory", name, _MEMORIES)


def communicator_class(name: str) -> type[Communicator]:
    """A communicator's class by name."""
    return _load("communicator", name, _COMMUNICATORS)


def memory_name(memory: Memory) -> str | None:
    """The table's name of a memory object; None for a user's own class."""
    for name in _MEMORIES:
        if type(memory).__name__ == _MEMORIES[name].partition(":")[2]:
            return name
    return None


def _load(kind: str, name: str, table: dict[str, str]) -> Any:
    if name not in table:
        raise unknown(kind, name, table)
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(f"grace_dl.{kind}.{module}"), attribute)


def unknown(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not in a table, with the nearest one that is."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"unknown {kind} {name!r}: {hint}Known: {', '.join(names)}.")
