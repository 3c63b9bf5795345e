"""Methods, memories and communicators by name.

Constructors, the text form, the command line, the documentation and the contract tests all read these tables.

>>> info("topk").memories
('residual', 'none', 'ef21')
>>> communicators_of(info("topk"))
('allgather', 'broadcast', 'sparse_allreduce')
>>> defaults_of(info("qsgd"))
((1, 'allgather'), (3, 'alltoall'))
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
from .communicator.sparse_allreduce import SparseAllreduce
from .errors import ConfigError
from .memory.acpsgd import ACPSGDMemory
from .memory.base import Memory
from .memory.demo import DemoMemory
from .memory.dgc import DgcMemory
from .memory.ef21 import Ef21Memory
from .memory.efsignsgd import EFSignSGDMemory
from .memory.loco import LocoMemory
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
    "ef21": Ef21Memory,
    "loco": LocoMemory,
    "dgc": DgcMemory,
    "demo": DemoMemory,
    "efsignsgd": EFSignSGDMemory,
    "signum": SignumMemory,
    "powersgd": PowerSGDMemory,
    "acpsgd": ACPSGDMemory,
}

COMMUNICATORS: dict[str, type[Communicator]] = {
    kind.name: kind for kind in (Allreduce, Allgather, Broadcast, Alltoall, SparseAllreduce)
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


def communicators_of(method: MethodInfo, memory: type[Memory] = Memory) -> tuple[str, ...]:
    """The valid communicators of a method with a memory."""
    return tuple(name for name, way in COMMUNICATORS.items() if _fits(way, method, memory))


def _fits(way: type[Communicator], method: MethodInfo, memory: type[Memory]) -> bool:
    return way.carries(method.cls) and _keeps(way, memory)


def _keeps(way: type[Communicator], memory: type[Memory]) -> bool:
    """Whether averages reach the ranks as exactly as the memory needs them."""
    return not (way.compresses_twice and memory.exact_average)


def defaults_of(method: MethodInfo, memory: type[Memory] = Memory) -> tuple[tuple[int, str], ...]:
    """The default communicators of a method: pairs of the smallest number of ranks and a name, in ascending order.

    Unless the method declares its own, payloads that sum go through an all-reduce. Others are gathered in one round, in
    which each rank sends its payload to every other one. From three ranks on an all-to-all sends less, if it can be used.
    """
    if method.communicators:
        return tuple(
            (least, name)
            for least, name in method.communicators
            # An unknown one stays, so that `communicator_for` rejects it.
            if _keeps(COMMUNICATORS.get(name, Communicator), memory)
        )
    if method.cls.sums:
        return ((1, Allreduce.name),)
    gathered = (1, Allgather.name)
    return (gathered, (3, Alltoall.name)) if _fits(Alltoall, method, memory) else (gathered,)


def default_communicator(method: MethodInfo, size: int, memory: type[Memory] = Memory) -> str:
    """The default communicator of a method among `size` ranks.

    >>> default_communicator(info("qsgd"), 2), default_communicator(info("qsgd"), 64)
    ('allgather', 'alltoall')
    """
    return [name for least, name in defaults_of(method, memory) if least <= size][-1]


def communicator_for(
    method: MethodInfo, name: str | None = None, size: int = 1, memory: type[Memory] = Memory
) -> type[Communicator]:
    """The communicator for `name`; the default of the method with this memory among `size` ranks for None."""
    name = default_communicator(method, size, memory) if name is None else name
    if name not in COMMUNICATORS:
        raise unknown("communicator", name, COMMUNICATORS)
    way = COMMUNICATORS[name]
    if not way.carries(method.cls):
        raise ConfigError(
            f"{method.name} cannot go through {way.name}: {way.refusal}. "
            f"It goes through: {', '.join(communicators_of(method))}."
        )
    if not _fits(way, method, memory):
        raise ConfigError(
            f"{method.name} with {memory.__name__} cannot go through {way.name}, which compresses averages a second time. It "
            f"goes through: {', '.join(communicators_of(method, memory))}."
        )
    return way


def check_communicator(method: MethodInfo, name: str | None, memory: type[Memory] = Memory) -> None:
    """Raise if `name` is no valid communicator of a method; for None, if one of its defaults is not."""
    for least, _ in defaults_of(method, memory):
        communicator_for(method, name, least, memory)


def default_rule(method: MethodInfo) -> str:
    """The default communicators of a method in words.

    >>> default_rule(info("qsgd"))
    'allgather by default, alltoall from 3 ranks on'
    """
    (_, first), *later = defaults_of(method)
    return f"{first} by default" + "".join(f", {name} from {least} ranks on" for least, name in later)


def able(way: type[Communicator], method: MethodInfo) -> type[Communicator]:
    """`way`, if it supports the method; raises otherwise."""
    if not way.carries(method.cls):
        others = [name for name, other in methods().items() if way.carries(other.cls)]
        raise ConfigError(
            f"{method.name} cannot go through a {way.name}: {way.refusal}. Methods that can: {', '.join(others)}."
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
