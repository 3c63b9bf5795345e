"""Docstrings as this project writes them, as reStructuredText for Sphinx and as Markdown.

A docstring is paragraphs, indented examples, doctests, and explanations of settings: lines that begin with names and a
colon.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

SETTING = re.compile(r"^((?:`?\w+`?)(?:, `?\w+`?)*): (.*)$")
HEADING = re.compile(r"^With memory='\w+':$")
"""A line above settings that only some memories have."""
RUNNING = re.compile(r"(?<=[.;] )(?=`\w+`: )")
"""Where the next setting begins inside a paragraph: after a sentence."""
CODE = re.compile(r"`([^`\n]+)`")


class Block(NamedTuple):
    """A part of a docstring: `text`, `settings` (lines `names: meaning`), `code` or `doctest`."""

    kind: str
    lines: list[str]


def blocks(document: str) -> Iterator[Block]:
    """The parts of a docstring.

    >>> [block.kind for block in blocks("Sends it.\\n\\nratio: how much\\n    of it.\\n\\n    a = 1\\n\\n>>> 1\\n1")]
    ['text', 'settings', 'code', 'doctest']
    """
    for part in re.split(r"\n\s*\n", inspect.cleandoc(document)):
        lines = part.splitlines()
        if not part.strip():
            continue
        if lines[0].startswith(">>>"):
            yield Block("doctest", lines)
        elif all(line.startswith("    ") for line in lines):
            yield Block("code", [line[4:] for line in lines])
        elif SETTING.match(lines[0]) or HEADING.match(lines[0]):
            yield Block("settings", lines)
        else:
            yield Block("text", lines)


def settings(lines: Sequence[str]) -> dict[str, str]:
    """Names and meanings of a settings block. A setting begins with a line, or with its name in backticks after a sentence.

    >>> settings(["beta: weight", "    of the residual.", "a, b: both."])
    {'beta': 'weight of the residual.', 'a, b': 'both.'}
    >>> settings(["`target`: a model. `method`: a", "method."])
    {'target': 'a model.', 'method': 'a method.'}
    >>> settings(["With memory='loco':", "decay: a weight."])
    {'decay': 'a weight.'}
    """
    if lines[0].startswith("`"):
        lines = [part.strip() for part in RUNNING.split(" ".join(line.strip() for line in lines))]
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        match = SETTING.match(line)
        if HEADING.match(line):
            continue
        if match:
            name = match[1].replace("`", "")
            found[name] = match[2]
        else:
            found[name] += " " + line.strip()
    return found


def to_rst(document: str) -> list[str]:
    """A docstring as lines of reStructuredText."""
    out: list[str] = []
    for kind, lines in blocks(document):
        if kind == "settings":
            for names, meaning in settings(lines).items():
                listed = ", ".join(f"``{name}``" for name in names.split(", "))
                out += [f"- {listed}: {_inline(meaning)}"]
        elif kind == "code":
            out += ["::", "", *textwrap.indent("\n".join(lines), "    ").splitlines()]
        else:
            out += lines if kind == "doctest" else [_inline(line) for line in lines]
        out.append("")
    return out


def _inline(text: str) -> str:
    """Inline code with two backticks; everything else that reStructuredText would take for markup is escaped."""
    parts = CODE.split(text)
    plain = [re.sub(r"([\\*|_])", r"\\\1", part) for part in parts[::2]]
    code = [f"``{part}``" for part in parts[1::2]]
    joined = [plain[0]]
    for inside, after in zip(code, plain[1:]):
        joined += [inside, f"\\ {after}" if after[:1].isalnum() else after]
    return "".join(joined)
