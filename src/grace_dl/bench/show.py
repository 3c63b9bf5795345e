"""Tables and pictures of results, for people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from .results import over_plain
from .summary import Row


def heading(header: dict[str, Any]) -> str:
    """Where and when figures were made, in a line."""
    m = header["machine"]
    return (
        f"{m['processor']}, {m['cores']} cores, {m['memory_gib']} GiB; Python {m['python']}, torch {m['torch']}, "
        f"grace {m['grace']}; {header['date'][:10]}"
    )


def kernels_table(records: Sequence[dict[str, Any]], numel: int) -> Table:
    """Cost in copies at one size: a row a method, a column a backend and thread count."""
    chosen = [r for r in records if r["numel"] == numel]
    columns = sorted({(r["backend"], r["threads"]) for r in chosen}, reverse=True)
    title = f"{numel:,} elements: compress + decode one peer, × the time of copy_"
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    table.add_column("bits", justify="right")
    for backend, threads in columns:
        table.add_column(f"{backend}, {threads} thread{'s' * (threads > 1)}", justify="right")
    for label in dict.fromkeys(r["label"] for r in chosen):
        row = {(r["backend"], r["threads"]): r for r in chosen if r["label"] == label}
        bits = next(iter(row.values()))["bits"]
        cells = [
            f"{row[c]['compress_copies']:.2f} + {row[c]['decode_copies']:.2f}" if c in row else "–"
            for c in columns
        ]
        table.add_row(label, f"{bits:.2f}", *cells)
    return table


def kernels_picture(header: dict[str, Any], records: Sequence[dict[str, Any]], path: Path) -> None:
    """Compress cost of every method at the largest size, reference beside native."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    numel = max(r["numel"] for r in records)
    threads = max(r["threads"] for r in records)
    chosen = [r for r in records if r["numel"] == numel and r["threads"] == threads]
    labels = list(dict.fromkeys(r["label"] for r in chosen))
    figure, axes = pyplot.subplots(figsize=(8, 0.32 * len(labels) + 1.6), layout="constrained")
    for offset, (backend, colour) in enumerate((("reference", "0.75"), ("native", "tab:blue"))):
        values = {
            r["label"]: r["compress_copies"] + r["decode_copies"] for r in chosen if r["backend"] == backend
        }
        if not values:
            continue
        places = [i + 0.4 * offset - 0.2 for i, label in enumerate(labels) if label in values]
        axes.barh(
            places, [values[label] for label in labels if label in values], 0.4, label=backend, color=colour
        )
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(f"compress with error feedback + decode one peer, in copies of {numel:,} float32")
    axes.set_title(f"{heading(header)}; {threads} threads", fontsize=8, loc="left")
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.{0 if seconds >= 1 else 1}f}"


def step_table(records: Sequence[dict[str, Any]], title: str) -> Table:
    """Steps of one setting: what each costs over a step that sends nothing, and where its time goes."""
    plain = next((r for r in records if r["label"] == "ddp"), None)
    table = Table(title=title, title_justify="left")
    for name in ("method", "ms", "÷ silent", "÷ ddp", "compress", "wait", "decode", "sent MB"):
        table.add_column(name, justify="left" if name == "method" else "right", overflow="fold")
    silent = statistics.median(r["reference_seconds"] for r in records)
    over = f"{1 / plain['over_reference']:.2f}" if plain else "–"
    table.add_row("silent", _ms(silent), "1.00", over, *[""] * 4, style="dim")
    for r in sorted(records, key=lambda r: r["over_reference"]):
        parts = [_ms(r["parts"][k]) for k in ("compress", "wait", "decode")]
        ours = r["params"] is not None
        over = f"{over_plain(r, plain):.2f}" if plain else "–"
        cells = [
            _ms(r["seconds"]),
            f"{r['over_reference']:.2f}",
            over,
            *(parts if ours else [""] * 3),
        ]
        table.add_row(r["label"], *cells, f"{r['leaving_bytes'] / 1e6:.3f}" if ours else "")
    return table


def traffic_table(records: Sequence[dict[str, Any]]) -> Table:
    """Bytes a rank sends for one exchange: reported, and counted on its network interface."""
    title = f"{records[0]['numel']:,} float32, per rank and step"
    table = Table(title=title, title_justify="left")
    for name in (
        "method, communicator",
        "hosts",
        "payload MB",
        "leaving MB",
        "on the wire MB",
        "leaving ÷ payload",
    ):
        table.add_column(name, justify="left" if name.startswith("method") else "right")
    for r in sorted(records, key=lambda r: (r["label"], r["workers"])):
        sizes = [f"{r[k] / 1e6:.3f}" for k in ("payload_bytes", "leaving_bytes", "measured_bytes")]
        table.add_row(r["label"], str(r["workers"]), *sizes, f"{r['leaving_bytes'] / r['payload_bytes']:.2f}")
    return table


def accuracy_table(rows: Sequence[Row], title: str, target: float | None) -> Table:
    """Methods at one link rate: how well they end, and when they reach the target. What loses to float32 is red."""
    aim = "" if target is None else f"; target {100 * target:.2f} %"
    columns = (
        "method",
        "accuracy %",
        "− float32",
        "s to target",
        "× sooner",
        "× bf16",
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
                when,
                *("–" if value is None else f"{value:.2f}" for value in (r.over_float32, r.over_bf16)),
                "–" if r.seconds is None else f"{r.seconds:.1f}",
                "–" if r.leaving_bytes is None else f"{r.leaving_bytes / 1e6:.1f}",
            )
        )
    # Runs that were not timed, for one, leave columns empty: the others have their room.
    shown = [place for place in range(len(columns)) if any(row[place] != "–" for row in cells)]
    table = Table(title=title + aim, title_justify="left")
    for place in shown:
        table.add_column(columns[place], justify="right" if place else "left", overflow="fold")
    for r, row in zip(rows, cells):
        style = "red" if target is not None and r.loses else None
        table.add_row(*(row[place] for place in shown), style=style)
    return table


def link_picture(header: dict[str, Any], records: Sequence[dict[str, Any]], path: Path) -> None:
    """Step time over that of a silent step against link rate, one panel a number of hosts."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    worlds = sorted({r["workers"] for r in records})
    rates = sorted({r["bits"] for r in records})
    names = {r["bits"]: r["rate"] for r in records}
    figure, panels = pyplot.subplots(
        1, len(worlds), figsize=(6.5 * len(worlds), 5), squeeze=False, layout="constrained"
    )
    for panel, world in zip(panels[0], worlds):
        for label in dict.fromkeys(r["label"] for r in records):
            found = {
                r["bits"]: r["over_reference"]
                for r in records
                if r["label"] == label and r["workers"] == world
            }
            places = [i for i, bits in enumerate(rates) if bits in found]
            style = {"color": "black", "linewidth": 2} if label == "ddp" else {"linewidth": 1}
            panel.plot(
                places, [found[rates[i]] for i in places], marker="o", markersize=3, label=label, **style
            )
        panel.set_xticks(range(len(rates)), [names[bits] for bits in rates])
        panel.set_yscale("log")
        panel.set_xlabel("link")
        panel.set_ylabel("step time ÷ a step that sends nothing")
        panel.set_title(f"{records[0]['model']}, {world} hosts")
    panels[0][-1].legend(fontsize=7)
    figure.suptitle(heading(header), fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
