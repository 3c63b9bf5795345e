"""The page around the sections: style, script, contents, and the origin of each file."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..formatting import escape
from .load import Result

HERE = Path(__file__).parent
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Makes the browser block every request that would leave the page."""


@dataclass(frozen=True)
class Section:
    """The part of the page about one result file."""

    anchor: str
    title: str
    summary: str
    """One line, for the contents."""
    body: str
    verdict: Sequence[str] = ()
    """What the file shows, in a line each, for the top of the page."""


def page(sections: Sequence[Section], title: str = "What gradient compression buys") -> str:
    """The whole page."""
    style, script = ((HERE / name).read_text("utf-8") for name in ("page.css", "page.js"))
    contents = "".join(
        f'<li><a href="#{s.anchor}">{escape(s.title)}</a> <span>{escape(s.summary)}</span></li>'
        for s in sections
    )
    bodies = "\n".join(
        f'<section id="{s.anchor}"><h2>{escape(s.title)}</h2>\n{s.body}</section>' for s in sections
    )
    found = "".join(f"<li>{escape(line)}</li>" for s in sections for line in s.verdict)
    verdict = f'<div class="verdict"><h2>In short</h2><ul>{found}</ul></div>\n' if found else ""
    made = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="meta">Written by grace {escape(__version__)} on {made}. Times are those of the machines named below; ratios are taken
within one run. <span class="bad">▼ marks what is slower or less accurate than plain DDP.</span></p>
{verdict}<nav aria-label="Contents"><ul>{contents}</ul></nav>
</header>
<main>
{bodies}
</main>
<script>
{script}</script>
</body>
</html>
"""


def provenance(result: Result) -> str:
    """Machine, versions, date and command of a file."""
    header = result.header
    machine: dict[str, Any] = header["machine"]
    known = {"processor": "", "cores": " cores", "memory_gib": " GiB", "system": ""}
    hardware = ", ".join(f"{machine[k]}{unit}" for k, unit in known.items() if machine.get(k))
    versions = ", ".join(f"{k} {v}" for k, v in machine.items() if k not in known)
    settings = ", ".join(f"{k} {_plain(v)}" for k, v in header["settings"].items() if v not in (None, {}, []))
    rows = {
        "file": result.name,
        "machine": hardware,
        "versions": versions,
        "date": str(header["date"]).replace("T", " "),
        "settings": settings,
    }
    items = "".join(f"<dt>{k}</dt><dd>{escape(v)}</dd>" for k, v in rows.items() if v)
    command = escape(shlex.join(str(word) for word in header["command"]))
    return f'<dl class="provenance">{items}<dt>command</dt><dd><code>{command}</code></dd></dl>\n'


def figure(caption: str, *content: str) -> str:
    """A chart with its caption above."""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{''.join(content)}</figure>\n"


def folded(summary: str, content: str, opened: bool = False) -> str:
    """Content that is shown on demand."""
    return f"<details{' open' if opened else ''}><summary>{escape(summary)}</summary>{content}</details>\n"


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    if isinstance(value, dict):
        return " ".join(f"{k}={v}" for k, v in value.items())
    return str(value)
