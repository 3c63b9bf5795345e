"""The text form of methods, for command lines, config files and result files.

`topk:0.01,beta=0.9` is `grace.topk(0.01, beta=0.9)`; a first setting needs no name. Compositions list their parts:
`schedule(0=none; 500=topk:0.01)`, `by_parameter(*.bias=none; default=int8)`. `str(method)` writes it, `parse` reads it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ..errors import ConfigError
from .base import Method, check_method
from .compose import by_parameter, schedule
from .named import build

_OPEN, _CLOSE = "([", ")]"
_SETTING = re.compile(r"(\w+)\s*=\s*(.*)", re.DOTALL)


def parse(text: str) -> Method:
    """The method with the given text form.

    >>> parse("powersgd:rank=4") == parse("powersgd:4")
    True
    >>> parse("by_parameter(*.bias=none; default=topk:0.01)").resolve("layer.bias", step=0)
    grace.none()
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{text!r} is no text of a method; write one as topk:0.01 or powersgd:rank=4.")
    text = text.strip()
    name, bracket, rest = text.partition("(")
    if bracket and name.strip() in _COMPOSITIONS:
        if not rest.endswith(")"):
            raise ConfigError(f"{text!r} lacks the closing bracket of {name}(...).")
        return _COMPOSITIONS[name.strip()](text, _split(rest[:-1], ";"))
    name, _, settings = text.partition(":")
    arguments: list[Any] = []
    keywords: dict[str, Any] = {}
    for item in _split(settings, ","):
        setting = _SETTING.fullmatch(item)
        if setting:
            key, value = setting.groups()
            if key in keywords:
                raise ConfigError(f"{text!r} gives {key!r} twice; give it once.")
            keywords[key] = _value(value)
        elif arguments or keywords:
            raise ConfigError(f"{text!r}: only the first setting may go without a name; write name={item}.")
        else:
            arguments.append(_value(item))
    return build(name.strip(), *arguments, **keywords)


def parse_list(texts: str | Iterable[str]) -> list[Method]:
    """Parse a list of methods separated by commas, spaces or both; duplicates are dropped.

    >>> [str(method) for method in parse_list(["topk:0.01,beta=0.9,int8", "powersgd:rank=2"])]
    ['topk:0.01,beta=0.9', 'int8', 'powersgd:2']
    """
    return list(dict.fromkeys(parse(text) for text in split_list(texts)))


def split_list(texts: str | Iterable[str]) -> list[str]:
    """Split such a list into texts.

    >>> split_list("ddp, topk:0.01,beta=0.9 int8")
    ['ddp', 'topk:0.01,beta=0.9', 'int8']
    """
    found: list[str] = []
    for item in _split(",".join([texts] if isinstance(texts, str) else texts), ", "):
        if found and _SETTING.fullmatch(item):
            found[-1] += f",{item}"
        else:
            found.append(item)
    return found


class CarriesMethod(Protocol):
    """An object that carries a method, such as a communicator of `grace_dl.dist`."""

    @property
    def method(self) -> Method: ...


def carries_method(value: Any) -> bool:
    """Whether `value` is a method, or an object that carries one as its `method`."""
    return isinstance(value, Method) or isinstance(getattr(value, "method", None), Method)


def as_method(method: Any) -> Method:
    """Convert a method, its text form, or an object that carries one as its `method`, to a method."""
    if isinstance(method, str):
        return parse(method)
    return (
        method.method if not isinstance(method, Method) and carries_method(method) else check_method(method)
    )


def _schedule(text: str, items: list[str]) -> Method:
    stages = []
    for item in items:
        step, equals, method = item.partition("=")
        if not equals or not step.strip().isdigit():
            raise ConfigError(f"{text!r}: {item!r} must be a step and a method, as in 500=topk:0.01.")
        stages.append((int(step), parse(method)))
    return schedule(*stages)


def _by_parameter(text: str, items: list[str]) -> Method:
    rules: dict[str, Method] = {}
    default: Method | None = None
    for place, item in enumerate(items, 1):
        pattern, equals, method = (part.strip() for part in item.partition("="))
        if not equals or not pattern:
            raise ConfigError(f"{text!r}: {item!r} must be a pattern and a method, as in *.bias=none.")
        if pattern in rules:
            raise ConfigError(f"{text!r} gives the pattern {pattern!r} twice; give it once.")
        if pattern == "default" and place == len(items):
            default = parse(method)
        else:
            rules[pattern] = parse(method)
    if default is None:
        raise ConfigError(
            f"{text!r} says nothing of other parameters; end it with default=none, or another method."
        )
    return by_parameter(rules, default=default)


_COMPOSITIONS: dict[str, Callable[[str, list[str]], Method]] = {
    "schedule": _schedule,
    "by_parameter": _by_parameter,
}


def _split(text: str, separators: str) -> list[str]:
    """Split at separators outside brackets and quotes."""
    parts, depth, quote, escaped = [""], 0, "", False
    for letter in text:
        if quote:
            quote = "" if letter == quote and not escaped else quote
            escaped = letter == "\\" and not escaped
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in _OPEN) - (letter in _CLOSE)
        if letter in separators and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
