"""Tables of results for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from .results import label_of, of_pytorch, over_plain
from .selection import DDP
from .summary import Row
from .target import Target


def heading(header: dict[str, Any]) -> str:
    """One line: the machine, the versions and the date of results."""
    m = header["machine"]
    return (
        f"{m['processor']}, {m['cores']} cores, {m['memory_gib']} GiB; Python {m['python']}, torch {m['torch']}, "
        f"grace {m['grace']}; {header['date'][:10]}"
    )


def kernels_table(records: Sequence[dict[str, Any]], numel: int) -> Table:
    """Time relative to a copy at one size: one row per method, one column per backend and thread count."""
    chosen = [r for r in records if r["numel"] == numel]
    columns = sorted({(r["backend"], r["threads"]) for r in chosen}, reverse=True)
    title = f"{numel:,} elements: compress + decode one peer, × the time of copy_"
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    table.add_column("bits", justify="right")
    for backend, threads in columns:
        table.add_column(f"{backend}, {threads} thread{'s' * (threads > 1)}", justify="right")
    for method in dict.fromkeys(r["method"] for r in chosen):
        row = {(r["backend"], r["threads"]): r for r in chosen if r["method"] == method}
        bits = next(iter(row.values()))["bits"]
        cells = [
            f"{row[c]['compress_copies']:.2f} + {row[c]['decode_copies']:.2f}" if c in row else "–"
            for c in columns
        ]
        table.add_row(method, f"{bits:.2f}", *cells)
    return table


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.{0 if seconds >= 1 else 1}f}"


def step_table(records: Sequence[dict[str, Any]], title: str) -> Table:
    """Steps of one setting, relative to a step without communication, and their breakdown."""
    plain = next((r for r in records if r["method"] == DDP), None)
    table = Table(title=title, title_justify="left")
    for name in ("method", "ms", "÷ silent", "÷ ddp", "compress", "wait", "decode", "sent MB"):
        table.add_column(name, justify="left" if name == "method" else "right", overflow="fold")
    silent = statistics.median(r["reference_seconds"] for r in records)
    over = f"{1 / plain['over_reference']:.2f}" if plain else "–"
    table.add_row("silent", _ms(silent), "1.00", over, *[""] * 4, style="dim")
    for r in sorted(records, key=lambda r: r["over_reference"]):
        parts = [_ms(r["parts"][k]) for k in ("compress", "wait", "decode")]
        ours = not of_pytorch(r)
        over = f"{over_plain(r, plain):.2f}" if plain else "–"
        cells = [
            _ms(r["seconds"]),
            f"{r['over_reference']:.2f}",
            over,
            *(parts if ours else [""] * 3),
        ]
        chose = f" → {r['choice']}, after {r['settled_after']} steps" if "choice" in r else ""
        table.add_row(label_of(r) + chose, *cells, f"{r['leaving_bytes'] / 1e6:.3f}" if ours else "")
    return table


def traffic_table(records: Sequence[dict[str, Any]]) -> Table:
    """Bytes that a rank sends in one exchange, as reported and as counted on the network interface of its host."""
    title = f"{records[0]['numel']:,} float32, per rank and step"
    table = Table(title=title, title_justify="left")
    for name in (
        "method",
        "ranks",
        "hosts",
        "payload MB",
        "leaving MB",
        "on the wire MB",
        "leaving ÷ payload",
    ):
        table.add_column(name, justify="left" if name == "method" else "right")
    for r in sorted(records, key=lambda r: (r["method"], r["workers"])):
        sizes = [f"{r[k] / 1e6:.3f}" for k in ("payload_bytes", "leaving_bytes", "measured_bytes")]
        table.add_row(
            r["method"],
            str(r["workers"]),
            str(r.get("hosts", r["workers"])),
            *sizes,
            f"{r['leaving_bytes'] / r['payload_bytes']:.2f}",
        )
    return table


def accuracy_table(rows: Sequence[Row], title: str, target: Target | None) -> Table:
    """Methods at one link rate: final accuracy, and when they reach the target. Methods slower than DDP are red."""
    aim = "" if target is None else f"; target: {target}"
    columns = (
        "method",
        "accuracy %",
        "− ddp",
        "loss",
        "÷ ddp",
        "s to target",
        "speed-up",
        "over bf16",
        "s in all",
        "sent MB",
    )
    cells = []
    for r in rows:
        end = "diverged" if r.accuracy is None else f"{100 * r.accuracy:.2f}"
        spread = "" if r.spread is None else f" ± {100 * r.spread:.2f}"
        if r.seconds_to_target is not None:
            when = f"{r.seconds_to_target:.1f}"
        else:
            when = "–" if target is None else f"{r.reached} of {r.runs} reach it"
        cells.append(
            (
                r.label,
                end + spread,
                "–" if r.gap is None else f"{100 * r.gap:+.2f}",
                "–"
                if r.loss is None
                else f"{r.loss:.4f}" + (f" ± {r.loss_spread:.4f}" if r.loss_spread is not None else ""),
                "–" if r.loss_over_ddp is None else f"{r.loss_over_ddp:.4f}",
                when,
                *("–" if value is None else f"{value:.2f}" for value in (r.speedup, r.speedup_over_bf16)),
                "–" if r.seconds is None else f"{r.seconds:.1f}",
                "–" if r.leaving_bytes is None else f"{r.leaving_bytes / 1e6:.1f}",
            )
        )
    # Columns without values, as for untimed runs, are dropped.
    shown = [place for place in range(len(columns)) if any(row[place] != "–" for row in cells)]
    table = Table(title=title + aim, title_justify="left")
    for place in shown:
        table.add_column(columns[place], justify="right" if place else "left", overflow="fold")
    for r, row in zip(rows, cells):
        style = "red" if target is not None and r.loses else None
        table.add_row(*(row[place] for place in shown), style=style)
    return table


def throughput(records: Sequence[dict[str, Any]]) -> str:
    """One line: samples per second of all workers together; empty where there are no samples."""
    if not records[0].get("samples"):
        return ""
    total = records[0]["samples"] * records[0]["workers"]
    parts = [f"{label_of(r)} {total / r['seconds']:.3g}" for r in records]
    return f"Samples per second, all workers: {', '.join(parts)}"


def grid_table(records: Sequence[dict[str, Any]]) -> Table:
    """One row per model: the step time of each method, and its ratio to that of plain DDP."""
    labels = list(dict.fromkeys(label_of(r) for r in records))
    table = Table(title="ms per step (÷ ddp, which is plain S-SGD)", title_justify="left")
    table.add_column("model")
    for label in labels:
        table.add_column(label, justify="right")
    for model in dict.fromkeys(r["model"] for r in records):
        row = {label_of(r): r for r in records if r["model"] == model}
        plain = row.get(DDP)
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
