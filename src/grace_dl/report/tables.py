"""HTML tables, which the page's script makes sortable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..formatting import escape


@dataclass(frozen=True)
class Cell:
    """The displayed text, the sort key (a number, or the text), and the CSS class: `bad` or none."""

    text: str
    value: float | None = None
    style: str = ""


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell | str]]) -> str:
    """`columns` that end with `|` hold text and are left-aligned, others hold numbers."""
    heads, left = [], []
    for name in columns:
        left.append(name.endswith("|"))
        kind = ' class="text"' if left[-1] else ""
        heads.append(f'<th scope="col"{kind}>{escape(name.rstrip("|"))}</th>')
    body = []
    for row in rows:
        cells = []
        for place, cell in enumerate(row):
            cell = cell if isinstance(cell, Cell) else Cell(cell)
            kinds = " ".join(k for k in ("text" if left[place] else "", cell.style) if k)
            attributes = (f' class="{kinds}"' if kinds else "") + (
                "" if cell.value is None else f' data-value="{_script(cell.value)}"'
            )
            tag = 'th scope="row"' if place == 0 else "td"
            cells.append(f"<{tag}{attributes}>{escape(cell.text)}</{tag.split()[0]}>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption><thead><tr>{"".join(heads)}</tr></thead>'
        f"<tbody>\n{chr(10).join(body)}\n</tbody></table></div>"
    )


def _script(value: float) -> str:
    """A number as scripts read it."""
    return "Infinity" if value == math.inf else f"{value:.9g}"
