"""A page for each method: what it computes, its settings, its bytes, and what was measured with it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import torch

import grace_dl as grace
from grace_dl import catalog
from grace_dl.algebra.named import build, constructor, write
from grace_dl.cli.method_listing import text_form
from grace_dl.formatting import number, size
from grace_dl.memory.none import NoneMemory
from grace_dl.registry import MethodInfo, parameters
from grace_dl.telemetry import Stats
from grace_dl.transport import Transport

from . import measured
from .docstrings import blocks, settings
from .navigation import toctree

SHAPE = (1024, 256)
SPREAD = 0.01
WORLDS = (2, 8)
STEPS = 2  # ACP-SGD sends one factor, then the other
TITLES = {
    "lower precision": "Dense, lower precision",
    "quantiser": "Quantizers",
    "signs": "Signs",
    "sparsifier": "Sparsifiers",
    "low rank": "Low rank",
}


def pages(root: Path) -> dict[str, str]:
    """The pages of all built-in methods, by path."""
    results = measured.results(root / "benchmarks")
    plain = _traffic("none")
    return {
        f"methods/{info.name}.md": "\n".join(_page(info, results, plain)) + "\n"
        for info in catalog.methods().values()
    }


def overview() -> str:
    """All methods by family; their names lead to the pages."""
    lines = [
        "# Methods",
        "",
        "A method is written as a constructor call in Python and as a text on command lines, in config files and in result",
        "files; `grace.parse` reads a text and `str(method)` writes it. Bits are per element of the dense gradient.",
        "`grace methods NAME` describes a method in the terminal.",
    ]
    infos = list(catalog.methods().values())
    for family in dict.fromkeys(info.family for info in infos):
        lines += [
            "",
            f"## {TITLES.get(family, family)}",
            "",
            "| method | what it sends | bits |",
            "|---|---|---|",
        ]
        for info in infos:
            if info.family == family:
                lines.append(
                    f"| [`{info.name}`](../methods/{info.name}.md) | {_cell(info.summary)} | {info.bits} |"
                )
    return "\n".join(lines) + "\n" + toctree([f"{info.name}.md" for info in infos], base="methods/")


def _page(info: MethodInfo, results: list[measured.Result], plain: dict[int, Stats]) -> Iterator[str]:
    yield from (f"# {info.name}", "")
    yield from _definition(info)
    yield from ("", "```{eval-rst}", f".. py:function:: grace_dl.{info.name}{_signature(info)}", "```", "")
    yield from ("```python", "import grace_dl as grace", "", f"method = {_example(info)}", "```", "")
    yield from _facts(info)
    yield from ("", "## Settings", "", *_settings(info))
    yield from ("", "## Bytes on the wire", "", *_bytes(info, plain))
    figures = list(measured.sections(info.name, results))
    if figures:
        yield from ("", "## Measured", "", *figures)
    kind = f"{info.cls.__module__}.{info.cls.__qualname__}"
    yield from ("", "## Implementation", "", "```{eval-rst}", f".. autoclass:: {kind}")
    yield from ("   :show-inheritance:", "```")


def _definition(info: MethodInfo) -> Iterator[str]:
    """The docstring without the settings, which have a table."""
    for kind, lines in blocks(inspect.getdoc(info.cls) or info.summary):
        if kind == "code":
            yield from ("```text", *lines, "```", "")
        elif kind == "doctest":
            yield from ("```pycon", *lines, "```", "")
        elif kind == "text":
            yield from (*lines, "")
    yield "x is the gradient, or what the memory makes of it, and Q(x) what other ranks decode."
    memory = catalog.memory_for(info)
    if memory is not NoneMemory:
        first = next(blocks(inspect.getdoc(memory) or "")).lines
        yield f"Memory `{info.memories[0]}`, for a gradient g: {' '.join(first)}"


def _signature(info: MethodInfo) -> str:
    signature = inspect.signature(constructor(info.name))
    return str(signature).replace("'", "") if signature.parameters else "()"


def _example(info: MethodInfo) -> str:
    return f'{build(info.name)!r}  # or grace.parse("{text_form(info)}")'


def _facts(info: MethodInfo) -> Iterator[str]:
    yield from ("| | |", "|---|---|")
    yield f"| Text form | `{text_form(info)}` |"
    yield f"| Family | {info.family} |"
    yield f"| Bits per element | {info.bits} |"
    yield f"| Expectation | {'biased: error feedback corrects it' if info.cls.biased else 'unbiased'} |"
    yield f"| Payloads | {'can be summed by an all-reduce' if info.cls.sums else 'are decoded by every rank'} |"
    yield f"| Memories | {_listed(info.memories)}; {info.memories[0]} by default |"
    yield f"| Communicators | {_listed(catalog.communicators_of(info))}; {catalog.default_rule(info)} |"
    yield f"| FSDP2's reduce-scatter | {'yes' if info.cls.elementwise else 'no'} |"
    yield f"| Reference | {_reference(info.reference)} |"
    for memory, reason in info.warn.items():
        yield from ("", f"**Warning** with the memory `{memory}`: {reason}")


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _reference(text: str) -> str:
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def _settings(info: MethodInfo) -> Iterator[str]:
    """All settings of the constructor, explained by its docstring."""
    meanings: dict[str, str] = {}
    for kind, lines in blocks(constructor(info.name).__doc__ or ""):
        if kind == "settings":
            for names, meaning in settings(lines).items():
                meanings.update(dict.fromkeys(names.split(", "), meaning))
    yield from ("| setting | default | meaning |", "|---|---|---|")
    for parameter in inspect.signature(constructor(info.name)).parameters.values():
        meaning = meanings.get(parameter.name, "") + _only_with(info, parameter.name)
        yield f"| `{parameter.name}` | `{write(parameter.default)}` | {_cell(meaning)} |"


def _only_with(info: MethodInfo, setting: str) -> str:
    """Names the memories that a setting belongs to, if the default memory is not one of them."""
    if setting in catalog.settings_of(info):
        return ""
    having = [
        name for name in info.memories if setting in {p.name for p in parameters(catalog.MEMORIES[name])}
    ]
    return f" Only with the memory {_listed(tuple(having))}." if having else ""


def _bytes(info: MethodInfo, plain: dict[int, Stats]) -> Iterator[str]:
    rows, columns = SHAPE
    yield (
        f"Per rank and step, for one {rows:,} × {columns} float32 gradient of normally distributed elements with standard deviation "
        f"{SPREAD}, with the default settings. Counted by `handle.stats()` with `simulated` ranks, when this page was built."
    )
    yield from (
        "",
        "| ranks | payload | bits per element | leaving the rank | plain all-reduce |",
        "|--:|--:|--:|--:|--:|",
    )
    for world, stats in _traffic(info.name).items():
        payload, leaving = stats.payload_bytes / STEPS, stats.leaving_bytes / STEPS
        bits = 8 * payload / (rows * columns)
        dense = plain[world].leaving_bytes / STEPS
        yield f"| {world} | {size(payload)} | {number(bits)} | {size(leaving)} | {size(dense)} |"


def _traffic(name: str) -> dict[int, Stats]:
    """Statistics of one rank after some steps, by the number of ranks."""
    return {ranks: grace.simulated(ranks).run(lambda rank: _train(name, rank))[0] for ranks in WORLDS}


def _train(name: str, transport: Transport) -> Stats:
    handle = grace.manual(build(name), transport=transport)
    draw = torch.Generator().manual_seed(transport.rank)
    for _ in range(STEPS):
        handle.step(SPREAD * torch.randn(SHAPE, generator=draw), "weight")
    return handle.stats()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
