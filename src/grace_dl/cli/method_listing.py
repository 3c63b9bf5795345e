"""The catalog of methods as a table, as Markdown and as JSON, and the description of one method."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import catalog
from ..algebra.base import Method
from ..algebra.named import OPTIONS, Named, build, signature, write
from ..algebra.text import EXAMPLES
from ..console import WIDE, output
from ..errors import GraceError
from ..integrations.attach import manual
from ..registry import MethodInfo, Parameter

SAMPLE = 1_000_000


def facts(info: MethodInfo) -> dict[str, Any]:
    """The metadata of a method, ready for JSON."""
    return {
        "name": info.name,
        "summary": info.summary,
        "text": text_form(info),
        "constructor": constructor_form(info),
        "class": f"{info.cls.__module__}.{info.cls.__qualname__}",
        "settings": {p.name: _plain(p.default) for p in _settings(info)},
        "bits_per_element": info.bits,
        "payloads_sum": info.cls.sums,
        "biased": info.cls.biased,
        "elementwise": info.cls.elementwise,
        "memories": list(info.memories),
        "communicator": catalog.default_communicator(info, 1),
        "communicators_by_ranks": dict(catalog.defaults_of(info)),
        "communicators": list(catalog.communicators_of(info)),
        "dense_below": info.dense_below,
        "warnings": dict(info.warn),
        "reference": info.reference,
    }


def text_form(info: MethodInfo) -> str:
    """The text form of the method with its defaults.

    >>> text_form(catalog.info("topk"))
    'topk:0.01'
    """
    try:
        return str(build(info.name))
    except (TypeError, GraceError):  # a user-defined method may have required settings
        return info.name


def constructor_form(info: MethodInfo) -> str:
    """The method's constructor with its settings and their defaults, without the common settings.

    >>> constructor_form(catalog.info("topk"))
    'grace.topk(ratio=0.01, value_dtype=None, *, beta=1.0, gamma=1.0, eta=1.0)'
    """
    shared = {p.name for p in OPTIONS}
    written = []
    for kind, p in signature(info):
        if p.name not in shared:
            if kind is inspect.Parameter.KEYWORD_ONLY and "*" not in written:
                written.append("*")
            written.append(f"{p.name}={_plain(p.default)!r}")
    return f"grace.{info.name}({', '.join(written)})"


def as_json(infos: Iterable[MethodInfo]) -> str:
    """The table for programs."""
    return json.dumps([facts(info) for info in infos], indent=2)


def show(infos: Sequence[MethodInfo], console: Console | None = None) -> None:
    """Print the table to a terminal; narrow terminals get fewer columns, so that words are not broken."""
    console = console or output()
    columns = ("bits per element", "sums", "settings", "communicator", "memory", "reference")
    narrow = console.width < WIDE
    shown = 4 if narrow else len(columns)
    table = Table(title=f"{len(infos)} methods", title_justify="left", header_style="bold")
    table.add_column("method", style="bold", no_wrap=True)
    for name in columns[:shown]:
        table.add_column(name, overflow="fold")
    for info in infos:
        cells = (
            info.bits,
            _yes(info.cls.sums),
            ", ".join(f"{p.name}={write(p.default)}" for p in info.parameters),
            _with_defaults(catalog.communicators_of(info), _communicators(info)),
            _with_defaults(info.memories, {info.memories[0]: info.memories[0]}),
            info.reference,
        )
        table.add_row(info.name, *cells[:shown])
    console.print(table)
    console.print(
        "Defaults are bold; (3+) means from three ranks on. `grace methods NAME` explains one method."
    )
    console.print("Methods compose, as in " + ", ".join(EXAMPLES.values()) + ".", highlight=False)
    if narrow:
        console.print(f"A terminal of {WIDE} columns also shows memories and references.")


def explain_composition(method: Method, console: Console | None = None) -> None:
    """Print what a method made of others does, before those are explained."""
    console = console or output()
    summary = (inspect.getdoc(type(method)) or "").partition("\n")[0]
    console.print(Text(f"{method}: {summary} Its parts:", style="bold"))


def explain(method: Named, console: Console | None = None) -> None:
    """Print the description of one method; sizes are for its settings."""
    console = console or output()
    info = method.info
    console.print(Text(f"{info.name}: {info.summary}", style="bold"))
    body = (inspect.getdoc(info.cls) or "").partition("\n")[2].strip()
    if body:
        console.print(Text(body))
    rows = [
        ("constructor", constructor_form(info)),
        ("text form", str(method)),
        ("reference", info.reference),
        ("bits per element", info.bits),
        ("wire size", _wire_size(method)),
        ("payloads sum", _yes(info.cls.sums)),
        ("biased", "yes: needs error feedback" if info.cls.biased else "no"),
        ("memories", f"{', '.join(info.memories)} (default {info.memories[0]})"),
        ("communicators", f"{', '.join(catalog.communicators_of(info))} ({catalog.default_rule(info)})"),
        ("sent dense", f"parameters under {info.dense_below} elements" if info.dense_below else "nothing"),
        ("class", f"{info.cls.__module__}.{info.cls.__qualname__}"),
        *((p.name, f"default {write(p.default)}") for p in _settings(info)),
        *((f"warning, {name}", reason) for name, reason in info.warn.items()),
    ]
    grid = Table.grid(padding=(0, 2))
    for label, value in rows:
        grid.add_row(Text(label, style="bold"), Text(value))
    console.print(grid)


def as_markdown(infos: Sequence[MethodInfo]) -> str:
    """The page docs/methods.md."""
    options = ", ".join(f"`{p.name}={write(p.default)}`" for p in OPTIONS)
    lines = [
        "# Methods",
        "",
        "Generated by `grace methods --markdown` from the catalog; to change a method's entry, change its `@register` line and its",
        "docstring. The first memory and the bold communicators are the defaults; `(3+)` means from three ranks on. Bits",
        "are per element of the dense gradient. `grace methods NAME` shows one method in the terminal.",
        "",
        "A method is written as a constructor call in Python and as a text on command lines, in config files and in result",
        "files; `grace.parse` reads a text and `str(method)` writes it. Settings of the compressor come first and may be given by",
        f"position, those after `*` by name only. Every method also takes {options}.",
        "",
        "| method | what it sends | bits | sums | memories | communicators | reference |",
        "|---|---|---|---|---|---|---|",
    ]
    for info in infos:
        partners, defaults = catalog.communicators_of(info), _communicators(info)
        cells = (
            f"[`{info.name}`](#{info.name})",
            info.summary,
            info.bits,
            _yes(info.cls.sums),
            ", ".join(info.memories),
            ", ".join(f"**{defaults[name]}**" if name in defaults else name for name in partners),
            info.reference,
        )
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    for info in infos:
        lines += ["", f"## {info.name}", "", *_description(info)]
    return "\n".join(lines) + "\n"


def _description(info: MethodInfo) -> list[str]:
    lines = [
        *textwrap.dedent(inspect.getdoc(info.cls) or info.summary).splitlines(),
        "",
        f"- Constructor: `{constructor_form(info)}`",
        f"- Text form: `{text_form(info)}`",
    ]
    return [*lines, *(f"- Warns with the memory `{name}`: {reason}" for name, reason in info.warn.items())]


def _settings(info: MethodInfo) -> list[Parameter]:
    """The settings of the method with its default memory."""
    return list(catalog.settings_of(info).values())


def _wire_size(method: Named) -> str:
    with manual(method) as handle:
        compressor = handle.session.communicator_of("w").compressor
    size = compressor.payload_bytes(SAMPLE)
    if size is None:
        return "depends on the shape" if compressor.multi_round else "depends on the data"
    return f"{size:,} bytes for {SAMPLE:,} elements ({8 * size / SAMPLE:.2f} bits each)"


def _plain(value: Any) -> Any:
    """A default value, ready for JSON."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def _communicators(info: MethodInfo) -> dict[str, str]:
    """The default communicators: name, and the name with the number of ranks from which it applies."""
    return {name: name if least == 1 else f"{name} ({least}+)" for least, name in catalog.defaults_of(info)}


def _with_defaults(names: Iterable[str], defaults: Mapping[str, str]) -> Text:
    text = Text()
    for place, name in enumerate(names):
        text.append(", " if place else "")
        text.append(defaults.get(name, name), style="bold" if name in defaults else "")
    return text


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
