"""One table over several models: what each way of exchanging gradients costs on each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from .results import over_plain


def speeds(records: Sequence[dict[str, Any]]) -> str:
    """Samples a second of all workers together, in a line; empty where there are no samples."""
    if not records[0].get("samples"):
        return ""
    total = records[0]["samples"] * records[0]["workers"]
    parts = [f"{r['label']} {total / r['seconds']:.3g}" for r in records]
    return f"Samples a second, workers together: {', '.join(parts)}"


def grid_table(records: Sequence[dict[str, Any]]) -> Table:
    """A row a model; the time of a step of each method, and that over plain DDP's."""
    labels = list(dict.fromkeys(r["label"] for r in records))
    table = Table(title="ms a step (÷ ddp, which is plain S-SGD)", title_justify="left")
    table.add_column("model")
    for label in labels:
        table.add_column(label, justify="right")
    for model in dict.fromkeys(r["model"] for r in records):
        row = {r["label"]: r for r in records if r["model"] == model}
        plain = row.get("ddp")
        cells = []
        for label in labels:
            record = row.get(label)
            if record is None:
                cells.append("–")
                continue
            over = f" ({over_plain(record, plain):.2f})" if plain else ""
            cells.append(f"{1e3 * record['seconds']:.0f}{over}")
        table.add_row(model, *cells)
    return table
