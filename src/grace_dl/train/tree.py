"""A tree of settings with attribute access that rejects unknown names and invalid values on assignment.

There are two kinds of group: subclasses of `Config` declare their settings as `Field`s (the root, `train` and `data`),
and `Config(SGD, lr=0.1)` wraps a callable, whose parameters are the settings.
"""

from __future__ import annotations

import copy
import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import ConfigError, GraceError


@dataclass(frozen=True)
class Later:
    """A value that depends on others; computed when all settings, including overrides, are known."""

    rule: Callable[[], Any]


def later(rule: Callable[[], Any]) -> Later:
    """Compute a value last: `later(lambda: configs.train.num_epochs - 5)`."""
    return Later(rule)


@dataclass(frozen=True)
class Field:
    """A declared setting: its default (a class is instantiated), a description of valid values, and their test."""

    default: Any
    what: str
    fits: Callable[[Any], bool]

    def new(self) -> Any:
        """A copy of the default, so that trees do not share objects."""
        return self.default() if isinstance(self.default, type) else copy.copy(self.default)

    def check(self, path: str, value: Any) -> Any:
        if isinstance(value, Later) or self.fits(value):
            return value
        raise ConfigError(f"{path}={value!r} does not fit: it must be {self.what}.")


class Config:
    """A group of settings; with a target, a call builds it.

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

    _fields: ClassVar[Mapping[str, Field]] = {}
    _root: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        declared = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
        for name in declared:
            delattr(cls, name)  # the values are those of instances
        cls._fields = {**cls._fields, **declared}

    def __init__(self, target: Callable[..., Any] | None = None, /, **values: Any) -> None:
        if target is not None and not callable(target):
            raise ConfigError(f"Config({target!r}): the target must be a class or a function.")
        own = self.__dict__
        own["_target"], own["_values"], own["_path"], own["_frozen"] = target, {}, self._root, False
        own["_known"] = _known(target) if target is not None else (set(self._fields) or None)
        for name, field in self._fields.items():
            self[name] = field.new()
        for name, value in values.items():
            self[name] = value

    # Access -------------------------------------------------------------------------------------------

    @property
    def target(self) -> Callable[..., Any] | None:
        """The class or function that this group calls."""
        return self.__dict__["_target"]

    def names(self) -> list[str] | None:
        """The known settings; None if any name is accepted."""
        known = self.__dict__["_known"]
        return None if known is None else sorted(known)

    def __setitem__(self, name: str, value: Any) -> None:
        known, path = self.__dict__["_known"], self._full(name)
        if self.__dict__["_frozen"]:
            raise ConfigError(
                f"{path} cannot be set: its TrainConfig is built already. A config file runs once for each TrainConfig, the modules "
                "that it imports do not; give overrides, or set values in the file itself."
            )
        if known is not None and name not in known:
            raise self.unknown(name)
        field = self._fields.get(name)
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
                raise self.unknown(name)
            raise ConfigError(f"{self._full(name)} is not set yet; set it before it is used.")
        value = values[name]
        return value.rule() if isinstance(value, Later) else value

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

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

    def unknown(self, name: str) -> ConfigError:
        """The error for a name that this group does not have."""
        known = self.names() or []
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f": did you mean {near[0]!r}? Known" if near else "; known"
        target = self.target
        of = f" of {_name(target).rpartition('.')[2]}" if target is not None else ""
        return ConfigError(f"unknown setting {self._full(name)}{of}{hint}: {', '.join(known) or 'none'}.")

    # Use ----------------------------------------------------------------------------------------------

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        """Call the target with these settings, after building the groups among them."""
        if self.target is None:
            raise ConfigError(
                f"{self.__dict__['_path'] or 'this group'} builds nothing: it only holds settings."
            )
        values = {name: value() if _builds(value) else value for name, value in self.items()}
        try:
            return self.target(*arguments, **{**values, **more})
        except GraceError:
            raise
        except (
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:  # what classes raise for arguments that do not fit
            path = self.__dict__["_path"] or "Config"
            said = str(error).rstrip(".")
            raise ConfigError(
                f"{path}: {_name(self.target)} could not be built: {said}. Change its settings."
            ) from error

    def retarget(self, target: Callable[..., Any]) -> Config:
        """A group with the same settings for another target.

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

    def freeze(self) -> None:
        """Reject every later change, of groups within this one too."""
        self.__dict__["_frozen"] = True
        for value in self.__dict__["_values"].values():
            if isinstance(value, Config):
                value.freeze()

    def plain(self) -> dict[str, Any]:
        """As dictionaries, lists, numbers and strings: the form written to JSON. `()` names the target of a group."""
        found: dict[str, Any] = {} if self.target is None else {"()": _name(self.target)}
        for name, value in self.items():
            found[name] = value.plain() if isinstance(value, Config) else _plain(value)
        return found

    def __repr__(self) -> str:
        what = _name(self.target) if self.target is not None else ""
        parts = [what, *(f"{name}={value!r}" for name, value in self.items())]
        return f"Config({', '.join(part for part in parts if part)})"


def _builds(value: Any) -> bool:
    return isinstance(value, Config) and value.target is not None


def _known(target: Callable[..., Any]) -> set[str] | None:
    """The keywords that a callable accepts; None for any."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # some built-in types have no signature
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
