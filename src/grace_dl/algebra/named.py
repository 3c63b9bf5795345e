"""Registered methods with settings, and their constructors `grace.<name>(...)`."""

from __future__ import annotations

import functools
import inspect
import math
import re
import warnings
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from .. import catalog
from ..communicator.base import Communicator
from ..communicator.state import State
from ..compressor.base import Compressor
from ..errors import ConfigError
from ..memory.base import Memory
from ..registry import MethodInfo, Parameter, parameters, unknown
from ..settings import whole
from ..transport import Transport
from .base import Single, at

OPTIONS = (
    Parameter("memory", None, "str | None"),
    Parameter("communicator", None, "str | None"),
    Parameter("seed", 0, "int"),
    Parameter("dense_below", None, "int | None"),
)
"""Settings that every method has: memory, communicator, seed, and the size below which parameters are sent
uncompressed."""


@dataclass(frozen=True, repr=False)
class Named(Single):
    """A registered method with its settings."""

    name: str
    settings: tuple[tuple[str, Any], ...] = ()
    """Settings that differ from their defaults, in the order of the signature."""

    @property
    def info(self) -> MethodInfo:
        """Its metadata in the registry."""
        return catalog.info(self.name)

    def get(self, setting: str) -> Any:
        """The value of a setting, given or default."""
        given = dict(self.settings)
        return (
            given[setting]
            if setting in given
            else _parameters(self.info, given.get("memory"))[setting].default
        )

    def but(self, **settings: Any) -> Named:
        """The same method with some settings changed.

        >>> from grace_dl import topk
        >>> topk(0.01).but(ratio=0.1) == topk(0.1)
        True
        """
        return build(self.name, **{**dict(self.settings), **settings})

    # Stages: warm-ups ---------------------------------------------------------------------------------

    @functools.cached_property
    def _stages(self) -> tuple[tuple[int, Single], ...]:
        info = self.info
        if info.schedule is None:
            return ()
        own = {p.name for p in parameters(info.schedule)}
        changes = info.schedule(**{name: self.get(name) for name in own})
        if not changes:
            return ()
        # Settings of the schedule are dropped, so that the last stage is the plain method.
        rest = {k: v for k, v in self.settings if k not in own or k in {p.name for p in info.parameters}}
        plain = build("none", **({"seed": rest["seed"]} if "seed" in rest else {}))
        return tuple(
            (step, plain if change is None else build(self.name, **{**rest, **change}))
            for step, change in changes
        )

    def resolve(self, name: str, step: int) -> Single:
        stages = self._stages
        return at(stages, step) if stages else self

    def stage(self, step: int) -> Hashable:
        return sum(first <= step for first, _ in self._stages)

    def parts(self) -> Iterator[Single]:
        stages = self._stages
        yield from dict.fromkeys(part for _, part in stages) if stages else (self,)

    # Work ---------------------------------------------------------------------------------------------

    def build(
        self, transport: Transport, state: State, way: type[Communicator] | None = None
    ) -> Communicator:
        info, chosen = self.info, self.get("communicator")
        if way is not None and chosen is not None:
            raise ConfigError(
                f"{self} chooses communicator {chosen!r}, but the target exchanges gradients by {way.name}; leave the "
                "setting out."
            )
        memory_class = catalog.memory_for(info, self.get("memory"))
        compressor = info.cls(**self._chosen(info.parameters))
        memory = memory_class(**self._chosen(parameters(memory_class)))
        dense_below = self.get("dense_below")
        own = catalog.communicator_for(info, chosen, transport.size, memory_class)
        found = own if way is None else catalog.able(way, info)
        return found(
            compressor,
            memory,
            transport=transport,
            state=state,
            seed=self.get("seed"),
            dense_below=info.dense_below if dense_below is None else dense_below,
            label=str(self),
        )

    def _chosen(self, wanted: tuple[Parameter, ...]) -> dict[str, Any]:
        given = dict(self.settings)
        return {p.name: given[p.name] for p in wanted if p.name in given}

    # Text ---------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        primary = self.info.parameters[:1]
        written = [write(self.get(p.name)) for p in primary]
        written += [
            f"{name}={write(value)}" for name, value in self.settings if name not in {p.name for p in primary}
        ]
        return f"{self.name}:{','.join(written)}" if written else self.name

    def __repr__(self) -> str:
        shown = {p.name: self.get(p.name) for p in self.info.parameters[:1]} | dict(self.settings)
        return f"grace.{self.name}({', '.join(f'{k}={_literal(v)}' for k, v in shown.items())})"


def build(name: str, *arguments: Any, **settings: Any) -> Named:
    """Build a method by name; the first setting may be positional.

    >>> build("topk", 0.01) == build("topk", ratio=0.01)
    True
    """
    info = catalog.info(name)
    for label in ("memory", "communicator"):
        if not isinstance(settings.get(label), (str, type(None))):
            raise ConfigError(
                f"{name}: {label}={settings[label]!r} must be the name of a {label}; see `grace methods {name}`."
            )
    memory = settings.get("memory")
    known = _parameters(info, memory)
    if len(arguments) > len(info.parameters):
        raise ConfigError(
            f"{name} takes at most {len(info.parameters)} settings by position, not {len(arguments)}; name the others."
        )
    for parameter, value in zip(info.parameters, arguments):
        if parameter.name in settings:
            raise ConfigError(f"{name}: {parameter.name!r} is given by position and by name; give it once.")
        settings[parameter.name] = value
    for key in settings:
        if key not in known:
            raise ConfigError(f"{name}: {unknown('setting', key, known)}")
    check_seed(settings.get("seed", 0))
    check_dense_below(settings.get("dense_below"))
    catalog.check_communicator(info, settings.get("communicator"), catalog.memory_for(info, memory))
    if memory is not None and info.memory(memory) == info.memories[0]:
        settings["memory"] = None
    frozen = {key: _frozen(value, known[key]) for key, value in settings.items()}
    given = tuple(
        (p, frozen[p]) for p, q in known.items() if p in frozen and frozen[p] != _frozen(q.default, q)
    )
    method = Named(name, given)
    _try_out(method)
    return method


def _parameters(info: MethodInfo, memory: str | None) -> dict[str, Parameter]:
    return {**catalog.settings_of(info, memory), **{p.name: p for p in OPTIONS}}


def _try_out(method: Named) -> None:
    """Build each class once, so that invalid values are rejected now."""
    info = method.info
    compressor = info.cls(**method._chosen(info.parameters))
    memory = info.memory(method.get("memory"))
    memory_class = catalog.memory_for(info, memory)
    memory_class(**method._chosen(parameters(memory_class)))
    method._stages  # noqa: B018
    warn_of_divergence(info, compressor, memory)


def warn_of_divergence(info: MethodInfo, compressor: Compressor, memory: str | None) -> None:
    """Warn about a pair that is allowed but known to diverge."""
    known = {**info.warn, **compressor.warn}
    if memory in known:
        warnings.warn(f"{info.name} with memory {memory!r}: {known[memory]}", stacklevel=4)


def check_seed(seed: Any) -> int:
    """A seed of random draws."""
    return whole("seed", seed, "the seed of all random draws")


def check_dense_below(size: Any) -> int | None:
    """The size below which parameters are sent uncompressed; None for the method's default."""
    if size is None:
        return None
    return whole(
        "dense_below", size, "the elements a parameter must have to be compressed; 0 compresses all", least=0
    )


def constructor(name: str) -> Callable[..., Named]:
    """The function `grace.<name>`, with the signature and the documentation of the method."""
    info = catalog.info(name)

    def construct(*arguments: Any, **settings: Any) -> Named:
        return build(name, *arguments, **settings)

    construct.__name__ = construct.__qualname__ = name
    construct.__module__ = "grace_dl"
    construct.__doc__ = documentation(info)
    construct.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(p.name, kind, default=p.default, annotation=p.annotation)
            for kind, p in signature(info)
        ],
        return_annotation="Method",
    )
    return construct


_SETTING = re.compile(r"\w+(, \w+)*: ")
"""The start of a docstring line that describes a setting."""

_COMMON = """memory: the error memory, by name: one of {memories}.
communicator: the collective that exchanges payloads, by name: one of {communicators}; {default}.
seed: the seed of all random draws.
dense_below: parameters with fewer elements are sent uncompressed; {dense_below} by default."""


def documentation(info: MethodInfo) -> str:
    """The docstring of a method's constructor: summary, settings, reference and an example."""
    first, *rest = (inspect.getdoc(info.cls) or "").split("\n\n")
    common = _COMMON.format(
        memories=", ".join(info.memories),
        communicators=", ".join(catalog.communicators_of(info)),
        default=catalog.default_rule(info),
        dense_below=info.dense_below,
    )
    others = [
        line
        for name in info.memories[1:]
        if (lines := _explained(catalog.MEMORIES[name], info))
        for line in (f"With memory={name!r}:", *lines)
    ]
    settings = rest.pop() if rest and _SETTING.match(rest[-1]) else ""
    own = _explained(catalog.memory_for(info), info)
    explained = "\n".join(filter(None, [settings, *own, *others, common]))
    example = f">>> import grace_dl as grace\n>>> grace.{info.name}() == grace.parse({str(build(info.name))!r})\nTrue"
    reference = f"Reference: {info.reference}. Bits per element: {info.bits}."
    return "\n\n".join([first, *rest, explained, reference, example])


def _explained(memory: type[Memory], info: MethodInfo) -> list[str]:
    """The lines of a memory's docstring for settings that the compressor does not have."""
    own = {p.name for p in info.parameters}
    wanted = tuple(f"{p.name}:" for p in parameters(memory) if p.name not in own)
    found, explaining = [], False
    for line in (inspect.getdoc(memory) or "").split("\n"):
        explaining = line.startswith(wanted) or (explaining and bool(line) and not _SETTING.match(line))
        if wanted and explaining:
            found.append(line)
    return found


def signature(info: MethodInfo) -> list[tuple[Any, Parameter]]:
    """The parameters of a method's constructor, those of all its memories; settings of the compressor may be positional."""
    first = {p.name for p in info.parameters}
    known: dict[str, Parameter] = {}
    for memory in info.memories:
        for name, parameter in catalog.settings_of(info, memory).items():
            known.setdefault(name, parameter)
    known |= {p.name: p for p in OPTIONS}
    return [
        (inspect.Parameter.POSITIONAL_OR_KEYWORD if p.name in first else inspect.Parameter.KEYWORD_ONLY, p)
        for p in known.values()
    ]


def _frozen(value: Any, parameter: Parameter) -> Any:
    """Normalize a setting: hashable, and equal values have equal text."""
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item, parameter) for item in value)
    if type(value) is int and "float" in parameter.annotation and "int" not in parameter.annotation:
        return float(value)
    try:
        hash(value)
    except TypeError:
        raise ConfigError(
            f"{parameter.name}={value!r} cannot be a setting: a method is an immutable value, and a "
            f"{type(value).__name__} is not; pass a number, a text or a tuple."
        ) from None
    return value


def write(value: Any) -> str:
    """The text form of a setting's value."""
    if isinstance(value, tuple):
        return f"[{','.join(map(write, value))}]"
    bare = isinstance(value, str) and _BARE.fullmatch(value) and value not in ("True", "False", "None")
    return str(value) if bare else _literal(value)


_BARE = re.compile(r"[A-Za-z_][\w.]*")
"""Texts that need no quotes."""


def _literal(value: Any) -> str:
    """A value as Python code; for a function its name, which is the same on every rank."""
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    return _function(value) if callable(value) else repr(value)


def _function(value: Any) -> str:
    if isinstance(value, functools.partial):
        given = [*map(write, value.args), *(f"{key}={write(part)}" for key, part in value.keywords.items())]
        return f"{_function(value.func)}({', '.join(given)})"
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
