"""What `grace plan` prints and saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..bench.results import Results
from ..formatting import milliseconds, number, rate, size
from ..plan.predict import DDP
from ..plan.profile import Profile
from ..plan.sweep import Row, Sweep, verdict

_BAR = 44
_PARTS = (("compute", "█", "green"), ("codec", "▓", "yellow"), ("waiting", "░", "red"))


def show(console: Console, profile: Profile, found: Sweep) -> None:
    """The table of methods, the composition of their steps, and the best method over workers and rates."""
    console.print(
        f"{profile.model}: {number(profile.numel / 1e6)} M parameters, {size(profile.nbytes)} of gradients; forward "
        f"{milliseconds(profile.forward)}, backward {milliseconds(profile.backward)}, update {milliseconds(profile.update)} ({profile.origin})"
    )
    console.print(_methods(found))
    for line in _exchanges(found):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(_picture(found))
    console.print(_best(found))
    console.print(Text(verdict(found), style="bold"))
    console.print("[dim]Speed only: see docs/benchmarks.md for the accuracy of each method.[/dim]")


def _methods(found: Sweep) -> Table:
    table = Table(
        title=f"Predicted training step on {found.cluster}, {found.cluster.workers:,} workers, {found.cluster.engine}"
    )
    table.add_column("method")
    for column in ("step", "speed-up", "efficiency", "leaves a rank", "codec", "waiting", "pays below"):
        table.add_column(column, justify="right")
    for row in found.ranked:
        step = row.prediction
        table.add_row(
            step.method,
            milliseconds(step.seconds),
            f"{row.speedup:.2f} ×",
            f"{step.efficiency:.0%}",
            size(step.leaving_bytes),
            milliseconds(step.codec),
            milliseconds(step.waiting),
            pays_below(row.break_even),
            style="bold" if step.method == DDP else ("" if row.speedup >= 1 else "dim"),
        )
    return table


def _exchanges(found: Sweep) -> list[str]:
    """A line for each rule of local steps: how much is exchanged how often, and how long it takes."""
    return [
        f"{step.method}: in every {step.every} steps {size(step.exchange_bytes)} leave a rank, which take "
        f"{milliseconds(step.timeline.seconds)} to encode, send and decode; {milliseconds(step.every * step.waiting)} of that are waited for"
        for step in (row.prediction for row in found.ranked)
        if step.every > 1
    ]


def pays_below(bits: float | None) -> str:
    """A break-even rate as text.

    >>> [pays_below(bits) for bits in (None, 0.0, 2.5e9, float("inf"))]
    ['', 'never', '2.5 Gbit/s', 'always']
    """
    if bits is None:
        return ""
    if bits == 0:
        return "never"
    return "always" if bits == float("inf") else rate(bits)


def _picture(found: Sweep) -> Group:
    longest = min(found.ranked[-1].prediction.seconds, 3 * found.rows[0].prediction.seconds)
    lines = [Text("Where the time goes: ").append_text(_legend())]
    width = max(len(row.prediction.method) for row in found.rows)
    for row in found.ranked:
        step = row.prediction
        line, room = Text(f"{step.method:>{width}} "), _BAR
        for part, mark, style in _PARTS:
            length = min(room, round(_BAR * getattr(step, part) / longest))
            room -= length
            line.append(mark * length, style)
        lines.append(line.append("→" if step.seconds > longest * 1.001 else ""))
    return Group(*lines)


def _legend() -> Text:
    text = Text()
    for part, mark, style in _PARTS:
        text.append(f"{mark} {part}  ", style)
    return text


def _best(found: Sweep) -> Table:
    table = Table(title="The fastest, and its speed-up over plain DDP, by workers and link rate of a node")
    table.add_column("workers", justify="right")
    for bits in found.over_rates:
        table.add_column(rate(bits))
    for workers in found.over_workers:
        cells = [found.best[workers, bits] for bits in found.over_rates]
        table.add_row(f"{workers:,}", *(_cell(row) for row in cells))
    return table


def _cell(row: Row) -> Text:
    plain = row.prediction.method == DDP
    style = "dim" if plain else ("green" if row.speedup > 1.25 else "")
    return Text(DDP if plain else f"{row.prediction.method} {row.speedup:.2g}×", style)


def save(path: Path, profile: Profile, found: Sweep, **settings: Any) -> None:
    """Write all predictions to a result file, which `grace report` reads."""
    cluster = found.cluster
    facts = {
        "model": profile.model,
        "parameters": profile.numel,
        "gradient_bytes": profile.nbytes,
        **{label: getattr(profile, label) for label in ("forward", "backward", "update", "origin")},
        "cluster": str(cluster),
        "engine": cluster.engine,
        "verdict": verdict(found),
    }
    results = Results(path, "plan", {**facts, **settings}, fresh=True)
    groups = {
        "here": found.rows,
        "workers": [row for rows in found.over_workers.values() for row in rows],
        "rates": [row for rows in found.over_rates.values() for row in rows],
        "best": list(found.best.values()),
    }
    results.add_all(
        {identity: record for kind, rows in groups.items() for identity, record in _records(kind, rows)}
    )


def _records(kind: str, rows: list[Row]) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for row in rows:
        step, there = row.prediction, row.prediction.cluster
        record = {
            "kind": kind,
            "method": step.method,
            "workers": there.workers,
            "bits": there.outer.bits,
            "seconds": step.seconds,
            "speedup": row.speedup,
            "efficiency": step.efficiency,
            "leaving_bytes": step.leaving_bytes,
            **{part: getattr(step, part) for part, _, _ in _PARTS},
        }
        if step.every > 1:
            record |= {
                "every": step.every,
                "exchange_bytes": step.exchange_bytes,
                "exchange_seconds": step.timeline.seconds,
            }
        if row.break_even is not None:
            record["break_even"] = min(row.break_even, 1e15)
        found.append((f"{kind}/{step.method}/{there.workers}/{there.outer.bits:g}", record))
    return found
