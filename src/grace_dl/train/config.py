"""A tree of settings with attribute access, in which a wrong name or value is refused where it is written.

Three kinds of group: one with declared `Field`s (what `configs` and `configs.train` are), one around a callable, whose
settings are the callable's parameters (`Config(SGD, lr=0.1)`), and one around a callable that takes any keyword.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError


@dataclass(frozen=True)
class Later:
    """A value that follows from others, taken when the whole config, command line included, is known."""

    rule: Callable[[], Any]


def later(rule: Callable[[], Any]) -> Later:
    """Mark a value to be computed last: `later(lambda: configs.train.num_epochs - 5)`."""
    return Later(rule)


@dataclass(frozen=True)
class Field:
    """One declared setting: its default, what it may be (in words), and the test of that."""

    default: Any
    what: str
    fits: Callable[[Any], bool]

    def check(self, path: str, value: Any) -> Any:
        if isinstance(value, Later) or self.fits(value):
            return value
        raise ConfigError(f"{path}={value!r} does not fit: it must be {self.what}.")


class Config:
    """A group of settings.

    >>> from fractions import Fraction
    >>> half = Config(Fraction, numerator=1)
    >>> half.denominator = 2
    >>> half()
    Fraction(1, 2)
    >>> half.numerater = 3
    Traceback (most recent call last):
    ...
    grace_dl.errors.ConfigError: unknown setting numerater of Fraction: did you mean 'numerator'? ...
    """

    def __init__(
        self,
        target: Callable[..., Any] | None = None,
        /,
        *,
        _fields: Mapping[str, Field] | None = None,
        **values: Any,
    ) -> None:
        if target is not None and not callable(target):
            raise ConfigError(f"Config({target!r}): what it is to build must be a class or a function.")
        own = self.__dict__
        own["_target"] = target
        own["_fields"] = dict(_fields or {})
        own["_values"] = {name: field.default for name, field in own["_fields"].items()}
        own["_path"] = ""
        own["_known"] = _known(target) if target is not None else (set(own["_fields"]) or None)
        for name, value in values.items():
            self[name] = value

    # Access -------------------------------------------------------------------------------------------

    @property
    def target(self) -> Callable[..., Any] | None:
        """What a call of this group builds."""
        return self.__dict__["_target"]

    def names(self) -> list[str] | None:
        """The settings there are; None where any name is taken."""
        known = self.__dict__["_known"]
        return None if known is None else sorted(known)

    def __setitem__(self, name: str, value: Any) -> None:
        known, path = self.__dict__["_known"], self._full(name)
        if known is not None and name not in known:
            raise self._unknown(name)
        field = self.__dict__["_fields"].get(name)
        if field is not None:
            value = field.check(path, value)
        if isinstance(value, Config):
            value.__dict__["_path"] = path
        self.__dict__["_values"][name] = value

    def __getitem__(self, name: str) -> Any:
        values = self.__dict__["_values"]
        if name not in values:
            known = self.__dict__["_known"]
            if known is not None and name not in known:
                raise self._unknown(name)
            raise ConfigError(f"{self._full(name)} is not set yet; set it before it is used.")
        value = values[name]
        return value.rule() if isinstance(value, Later) else value

    __setattr__ = __setitem__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__["_values"]

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__["_values"])

    def items(self) -> list[tuple[str, Any]]:
        return [(name, self[name]) for name in self]

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        return self[name]

    def _full(self, name: str) -> str:
        path = self.__dict__["_path"]
        return f"{path}.{name}" if path else name

    def _unknown(self, name: str) -> ConfigError:
        known = self.names() or []
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        target = self.target
        of = f" of {_name(target).rpartition('.')[2]}" if target is not None else ""
        return ConfigError(
            f"unknown setting {self._full(name)}{of}: {hint}Known: {', '.join(known) or 'none'}."
        )

    # Use ----------------------------------------------------------------------------------------------

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        """Build: call the target with these settings, groups within them built first."""
        if self.target is None:
            raise ConfigError(
                f"{self.__dict__['_path'] or 'this group'} builds nothing: it holds settings only."
            )
        values = {name: value() if _builds(value) else value for name, value in self.items()}
        try:
            return self.target(*arguments, **{**values, **more})
        except TypeError as error:
            path = self.__dict__["_path"] or "Config"
            raise ConfigError(f"{path}: {_name(self.target)} could not be built: {error}.") from error

    def retarget(self, target: Callable[..., Any]) -> Config:
        """A group with the same settings that builds something else.

        >>> Config(dict, a=1).retarget(list).target
        <class 'list'>
        """
        other = Config(target)
        other.__dict__["_path"] = self.__dict__["_path"]
        other.__dict__["_values"].update(self.__dict__["_values"])
        return other

    def resolve(self) -> None:
        """Replace every `Later` by its value, and check it."""
        for name in list(self):
            raw = self.__dict__["_values"][name]
            if isinstance(raw, Later):
                self[name] = raw.rule()
            elif isinstance(raw, Config):
                raw.resolve()

    def plain(self) -> dict[str, Any]:
        """As dictionaries, lists, numbers and strings: what is written to JSON. `()` names what a group builds."""
        found: dict[str, Any] = {} if self.target is None else {"()": _name(self.target)}
        for name, value in self.items():
            found[name] = value.plain() if isinstance(value, Config) else _plain(value)
        return found

    def clear(self) -> None:
        """Back to the defaults of the declared settings."""
        fields = self.__dict__["_fields"]
        self.__dict__["_values"] = {name: field.default for name, field in fields.items()}

    def __repr__(self) -> str:
        what = _name(self.target) if self.target is not None else ""
        parts = [what, *(f"{name}={value!r}" for name, value in self.items())]
        return f"Config({', '.join(part for part in parts if part)})"


def _builds(value: Any) -> bool:
    return isinstance(value, Config) and value.target is not None


def _known(target: Callable[..., Any]) -> set[str] | None:
    """The keywords a callable takes; None for any."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # some built-in types tell nothing about themselves
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _name(target: Any) -> str:
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)}"


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return _name(value) if callable(value) else repr(value)
