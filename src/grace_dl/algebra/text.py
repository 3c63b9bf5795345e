"""The text form of methods, for command lines, config files and result files.

`topk:0.01,beta=0.9` is `grace.topk(0.01, beta=0.9)`; a first setting needs no name. Compositions list their parts:
`schedule(0=none; 500=topk:0.01)`, `by_parameter(*.bias=none; default=int8)`, `hierarchical(inner=none; outer=int4)`,
`auto(int8; powersgd:4)`. `str(method)` writes it, `parse` reads it.

Where a whole training rule may be given, as in benchmarks, `parse_rule` also reads local steps: `local(int4; every=30)`, and
the published rules `diloco` and `sparseloco:every=100`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, Protocol

from ..errors import ConfigError
from .auto import auto
from .base import Method, check_method
from .compose import by_parameter, schedule
from .hierarchical import hierarchical
from .local_rule import NAME as LOCAL
from .local_rule import PUBLISHED, SETTINGS, LocalRule
from .named import build

_OPEN, _CLOSE = "([", ")]"
_DEEPEST = 20
"""Brackets within brackets: a text is read and written by recursion."""
_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
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
    if (
        max(accumulate((letter in _OPEN) - (letter in _CLOSE) for letter in _QUOTED.sub("-", text)))
        > _DEEPEST
    ):
        raise ConfigError(
            f"{text[:40]!r}… nests brackets more than {_DEEPEST} deep; write a method with fewer levels."
        )
    name, bracket, rest = text.partition("(")
    if text == "auto":
        return auto()
    if bracket and name.strip() in _COMPOSITIONS:
        if not rest.endswith(")"):
            raise ConfigError(f"{text!r} lacks the closing bracket of {name}(...).")
        return _COMPOSITIONS[name.strip()](text, _split(rest[:-1], ";"))
    if is_rule(text):
        raise ConfigError(
            f"{text!r} is a rule for local steps, not a method; pass its method to grace.LocalSteps, or use it in `grace bench`, "
            "`grace plan` and configs."
        )
    name, colon, settings = text.partition(":")
    if name.strip() in _COMPOSITIONS:
        raise ConfigError(
            f"{text!r}: list the methods of {name.strip()} in brackets, as in {EXAMPLES[name.strip()]}."
        )
    if colon and not settings.strip():
        raise ConfigError(
            f"{text!r} ends where its settings should follow; write topk:0.01, or the name alone for its defaults."
        )
    arguments, keywords = _settings(text, settings)
    return build(name.strip(), *arguments, **keywords)


def _settings(text: str, settings: str) -> tuple[list[Any], dict[str, Any]]:
    """The settings after the colon of a text: one without a name, if any, and those with names."""
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
    return arguments, keywords


def is_rule(text: str) -> bool:
    """Whether a text is of a rule for local steps, not of a method."""
    return re.split(r"[(:]", text.strip(), maxsplit=1)[0].strip() in (LOCAL, *PUBLISHED)


def parse_rule(text: str) -> Method | LocalRule:
    """The method, or the rule for local steps, with the given text form.

    >>> print(parse_rule("local(topk:0.01,beta=0.9; every=50; delay=5)"))
    local(topk:0.01,beta=0.9; every=50; delay=5)
    >>> parse_rule("sparseloco:100") == parse_rule("local(chunktopk:beta=0.95; every=100)")
    True
    >>> parse_rule("int8")
    grace.int8()
    """
    if not isinstance(text, str) or not is_rule(text):
        return parse(text)
    text = text.strip()
    name, _, rest = text.partition(":")
    if name.strip() in PUBLISHED:
        arguments, keywords = _settings(text, rest)
        if arguments and "every" in keywords:
            raise ConfigError(f"{text!r} gives 'every' twice; give it once.")
        keywords.update(zip(("every",), arguments))
        _check_names(text, keywords)
        return PUBLISHED[name.strip()](**keywords)
    items = _split(text.partition("(")[2].removesuffix(")"), ";")
    if "(" not in text or not text.endswith(")") or not items or _is_rule_setting(items[0]):
        raise ConfigError(f"{text!r} must name a method and its settings, as in local(int4; every=30).")
    pairs = [tuple(part.strip() for part in item.partition("=")[::2]) for item in items[1:]]
    keywords = {key: _value(value) for key, value in pairs}
    if len(keywords) < len(pairs):
        raise ConfigError(f"{text!r} gives a setting twice; give it once.")
    _check_names(text, keywords)
    return LocalRule(parse(items[0]), **keywords)


def _is_rule_setting(item: str) -> bool:
    return item.partition("=")[0].strip() in SETTINGS


def _check_names(text: str, given: Iterable[str]) -> None:
    unknown = [name for name in given if name not in SETTINGS]
    if unknown:
        raise ConfigError(
            f"{text!r}: {unknown[0]!r} is no setting of local steps; known: {', '.join(SETTINGS)}. Those of the method follow its "
            "name, as in local(topk:0.01,beta=0.9; every=30)."
        )


def split_list(texts: str | Iterable[str]) -> list[str]:
    """Split a list of methods, separated by commas, spaces or both, into their texts.

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
    """Whether `value` is a method, or an object that carries one as its `method`. A rule for local steps is neither."""
    if isinstance(value, LocalRule):
        return False
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


def _hierarchical(text: str, items: list[str]) -> Method:
    given: dict[str, Any] = {}
    readers: dict[str, Callable[[str], Any]] = {
        "inner": parse,
        "outer": parse,
        "ranks_per_node": _value,
        "nodes": _value,
    }
    for item in items:
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in readers:
            raise ConfigError(
                f"{text!r}: {item!r} must be inner=, outer=, ranks_per_node= or nodes= with a value, as in outer=int4."
            )
        if key in given:
            raise ConfigError(f"{text!r} gives {key!r} twice; give it once.")
        given[key] = readers[key](value)
    return hierarchical(**given)


def _auto(text: str, items: list[str]) -> Method:
    allow: list[Method] = []
    settings: dict[str, Any] = {}
    for item in items:
        key, equals, value = (part.strip() for part in item.partition("="))
        if equals and key == "every":
            if key in settings:
                raise ConfigError(f"{text!r} gives {key!r} twice; give it once.")
            settings[key] = _value(value)
        else:
            allow.append(parse(item))
    return auto(allow or None, **settings)


_COMPOSITIONS: dict[str, Callable[[str, list[str]], Method]] = {
    "schedule": _schedule,
    "by_parameter": _by_parameter,
    "hierarchical": _hierarchical,
    "auto": _auto,
}
EXAMPLES = {
    "schedule": "schedule(0=none; 500=topk:0.01)",
    "by_parameter": "by_parameter(*.bias=none; default=int8)",
    "hierarchical": "hierarchical(inner=none; outer=int4)",
    "auto": "auto(int8; powersgd:4)",
}
"""A text of each composition, for messages."""


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
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
