"""The registry's table, for people (terminal, documents) and for programs (JSON)."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..console import WIDE, output
from ..errors import GraceError
from ..registry import Method

HIDDEN = ("average", "tensors_size_are_same")
"""Settings every compressor takes for the sake of subclasses written for the original GRACE."""

SAMPLE = 1_000_000


def settings(record: Method) -> str:
    """A method's parameters with their defaults, as one would write them."""
    return ", ".join(f"{p.name}={_value(p.default)}" for p in record.parameters if p.name not in HIDDEN)


def facts(record: Method) -> dict[str, Any]:
    """All that is known of a method, ready for JSON."""
    return {
        "name": record.name,
        "summary": record.summary,
        "class": f"{record.cls.__module__}.{record.cls.__qualname__}",
        "parameters": {p.name: _plain(p.default) for p in record.parameters if p.name not in HIDDEN},
        "bits_per_element": record.bits,
        "payloads_sum": record.cls.sums,
        "biased": record.cls.biased,
        "elementwise": record.cls.elementwise,
        "memories": list(record.memories),
        "communicator": record.communicator,
        "communicators": list(record.communicators),
        "dense_below": record.dense_below,
        "warnings": dict(record.warn),
        "reference": record.reference,
    }


def as_json(records: Iterable[Method]) -> str:
    """The table for programs."""
    return json.dumps([facts(record) for record in records], indent=2)


def show(records: list[Method], console: Console | None = None) -> None:
    """The table for a terminal; a narrow one is spared what would break words."""
    console = console or output()
    columns = ("bits per element", "sums", "parameters", "communicator", "memory", "reference")
    narrow = console.width < WIDE
    shown = 4 if narrow else len(columns)
    table = Table(title=f"{len(records)} methods", title_justify="left", header_style="bold")
    table.add_column("method", style="bold", no_wrap=True)
    for name in columns[:shown]:
        table.add_column(name, overflow="fold")
    for record in records:
        cells = (
            record.bits,
            "yes" if record.cls.sums else "no",
            settings(record),
            _first_bold(record.communicators, record.communicator),
            _first_bold(record.memories, record.memories[0]),
            record.reference,
        )
        table.add_row(record.name, *cells[:shown])
    console.print(table)
    console.print("Bold partners are the defaults. `grace methods NAME` explains one method.")
    if narrow:
        console.print(f"A terminal of {WIDE} columns shows memories and references too.")


def explain(record: Method, console: Console | None = None) -> None:
    """One method, for a terminal."""
    console = console or output()
    console.print(Text(f"{record.name}: {record.summary}", style="bold"))
    body = (inspect.getdoc(record.cls) or "").partition("\n")[2].strip()
    if body:
        console.print(Text(body))
    rows = [
        ("reference", record.reference),
        ("class", f"{record.cls.__module__}.{record.cls.__qualname__}"),
        ("bits per element", record.bits),
        ("wire size", _sample_size(record)),
        ("payloads sum", "yes" if record.cls.sums else "no"),
        ("biased", "yes: wants error feedback" if record.cls.biased else "no"),
        ("memories", ", ".join(record.memories) + f" (default {record.memories[0]})"),
        ("communicators", ", ".join(record.communicators) + f" (default {record.communicator})"),
        (
            "sent dense",
            f"parameters under {record.dense_below} elements" if record.dense_below else "nothing",
        ),
        *((f"{p.name}", f"default {_value(p.default)}") for p in record.parameters if p.name not in HIDDEN),
        *((f"warning, {name}", reason) for name, reason in record.warn.items()),
    ]
    grid = Table.grid(padding=(0, 2))
    for label, value in rows:
        grid.add_row(Text(label, style="bold"), Text(value))
    console.print(grid)
    console.print(Text(f"\ngrc = grace_from_params({_example(record)})"))


def as_markdown(records: list[Method]) -> str:
    """The page docs/methods.md."""
    lines = [
        "# Methods",
        "",
        "Written by `grace methods --markdown` from the registry; change a method's `@register` line, not this page.",
        "Naming only the compressor picks the first memory and the bold communicator. Bits are per element of the",
        "dense gradient. `grace methods NAME` explains one method in the terminal.",
        "",
        "| method | what it sends | bits | sums | memories | communicators | reference |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in records:
        partners = ", ".join(f"**{c}**" if c == r.communicator else c for c in r.communicators)
        cells = (
            f"[`{r.name}`](#{r.name})",
            r.summary,
            r.bits,
            "yes" if r.cls.sums else "no",
            ", ".join(r.memories),
            partners,
            r.reference,
        )
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    for r in records:
        lines += [
            "",
            f"## {r.name}",
            "",
            *textwrap.dedent(inspect.getdoc(r.cls) or r.summary).splitlines(),
            "",
        ]
        lines += ["```python", f"grc = grace_from_params({_example(r)})", "```"]
        for name, reason in r.warn.items():
            lines += ["", f"With the memory `{name}` it warns: {reason}"]
    return "\n".join(lines) + "\n"


def _example(record: Method) -> str:
    pairs = {"compressor": record.name}
    shown = {p.name: p.default for p in record.parameters if p.name not in HIDDEN and p.default is not None}
    return repr({**pairs, **shown})


def _sample_size(record: Method) -> str:
    try:
        size = record.cls().payload_bytes(SAMPLE)
    except (TypeError, GraceError):  # a user's own method may need arguments
        return "depends on its arguments"
    if size is None:
        return "depends on the shape" if record.cls.multi_round else "depends on the data"
    return f"{size:,} bytes for {SAMPLE:,} elements with the defaults ({8 * size / SAMPLE:.2f} bits each)"


def _value(default: Any) -> str:
    return repr(_plain(default))


def _plain(value: Any) -> Any:
    """A default as JSON can hold it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def _first_bold(names: Iterable[str], default: str) -> Text:
    text = Text()
    for place, name in enumerate(names):
        text.append(", " if place else "")
        text.append(name, style="bold" if name == default else "")
    return text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
