"""Methods, memories and communicators by name.

Constructors, the text form, the command line, the documentation and the contract tests all read these tables.

>>> info("topk").memories
('residual', 'none')
>>> communicators_of(info("topk"))
('allgather', 'broadcast')
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace

from . import methods as builtin
from . import registry
from .communicator.allgather import Allgather
from .communicator.allreduce import Allreduce
from .communicator.alltoall import Alltoall
from .communicator.base import Communicator
from .communicator.broadcast import Broadcast
from .errors import ConfigError
from .memory.acpsgd import ACPSGDMemory
from .memory.base import Memory
from .memory.dgc import DgcMemory
from .memory.efsignsgd import EFSignSGDMemory
from .memory.none import NoneMemory
from .memory.powersgd import PowerSGDMemory
from .memory.residual import ResidualMemory
from .memory.signum import SignumMemory
from .registry import MethodInfo, Parameter, parameters, unknown

FAMILIES = ("lower precision", "quantiser", "signs", "sparsifier", "low rank")
"""Families of built-in methods, in listing order; user-defined methods follow."""

MEMORIES: dict[str, type[Memory]] = {
    "none": NoneMemory,
    "residual": ResidualMemory,
    "dgc": DgcMemory,
    "efsignsgd": EFSignSGDMemory,
    "signum": SignumMemory,
    "powersgd": PowerSGDMemory,
    "acpsgd": ACPSGDMemory,
}

COMMUNICATORS: dict[str, type[Communicator]] = {
    kind.name: kind for kind in (Allreduce, Allgather, Broadcast, Alltoall)
}


def methods() -> dict[str, MethodInfo]:
    """All methods by name: the built-in ones by family, then user-defined ones."""
    for name in builtin_names():
        importlib.import_module(f"{builtin.__name__}.{name}")
    places = {family: place for place, family in enumerate(FAMILIES)}

    def order(method: MethodInfo) -> tuple[int, str]:
        place = places.get(method.family, len(places))
        return place, method.name if place < len(places) else ""

    ordered = sorted(registry.methods.values(), key=order)
    return {method.name: method for method in ordered}


def builtin_names() -> list[str]:
    """Names of the built-in methods in alphabetical order; imports none of them."""
    return sorted(module.name for module in pkgutil.iter_modules(builtin.__path__))


def info(name: str) -> MethodInfo:
    """Metadata of one method."""
    if name not in registry.methods and name in builtin_names():
        importlib.import_module(f"{builtin.__name__}.{name}")
    if name not in registry.methods:
        raise unknown("method", name, methods())
    return registry.methods[name]


def info_of(cls: type) -> MethodInfo:
    """Metadata of a compressor class, or of its registered base class."""
    for base in cls.__mro__:
        for method in registry.methods.values():
            if method.cls is base:
                return method if base is cls else replace(method, cls=cls)
    return registry.describe(cls.__name__, cls)


def communicators_of(method: MethodInfo) -> tuple[str, ...]:
    """The valid communicators of a method."""
    return tuple(name for name, way in COMMUNICATORS.items() if way.carries(method.cls))


def communicator_for(method: MethodInfo, name: str | None = None) -> type[Communicator]:
    """The communicator for `name`; the method's default for None."""
    if name is not None and name not in COMMUNICATORS:
        raise unknown("communicator", name, COMMUNICATORS)
    way = COMMUNICATORS[method.communicator if name is None else name]
    if not way.carries(method.cls):
        raise ConfigError(
            f"{method.name} cannot go through {way.name}: {way.refusal}. "
            f"It goes through: {', '.join(communicators_of(method))}."
        )
    return way


def memory_for(method: MethodInfo, name: str | None = None) -> type[Memory]:
    """The memory for `name`; the method's default for None."""
    if name is not None and name not in MEMORIES:
        raise unknown("memory", name, MEMORIES)
    return MEMORIES[method.memory(name)]


def memory_name(memory: Memory) -> str | None:
    """The registered name of a memory object; None for a user-defined class."""
    return next((name for name, cls in MEMORIES.items() if cls is type(memory)), None)


def settings_of(method: MethodInfo, memory: str | None = None) -> dict[str, Parameter]:
    """All settings of a method with this memory, by name: of its compressor, its schedule and the memory.

    >>> list(settings_of(info("topk")))
    ['ratio', 'value_dtype', 'beta', 'gamma']
    """
    found = {p.name: p for p in method.parameters}
    for source in (method.schedule, memory_for(method, memory)):
        if source is not None:
            for parameter in parameters(source):
                found.setdefault(parameter.name, parameter)
    return found
