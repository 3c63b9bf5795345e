"""Accuracy by time and bytes, and the time to a target."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ..bench import summary
from ..bench.results import label_of
from ..bench.selection import DDP
from ..bench.summary import BF16
from ..formatting import escape, link, number, percent, size
from . import charts
from .load import Result
from .page import Section, figure, provenance
from .tables import Cell, table

Record = dict[str, Any]


def section(result: Result, anchor: str) -> Section:
    """Everything about one study: curves and tables for each task and link rate."""
    body = [provenance(result)]
    groups = summary.groups(result.records)
    for (task, epochs, workers), records in groups.items():
        body.append(f"<h3>{escape(task)}, {epochs} epochs, {workers} workers</h3>\n")
        body.append(_group(records, task))
    tasks = ", ".join(dict.fromkeys(task for task, _, _ in groups))
    labels, seeds = {label_of(r) for r in result.records}, {r["seed"] for r in result.records}
    rates = list(dict.fromkeys(link(r) for r in sorted(result.records, key=lambda r: r["bits"])))
    words = f"{len(labels)} methods, {len(seeds)} seed{'s' * (len(seeds) > 1)}; {', '.join(rates)}"
    return Section(anchor, f"Accuracy: {tasks}", words, "".join(body))


def _group(records: Sequence[Record], task: str) -> str:
    target = summary.default_target(records)
    ends: dict[str, list[float]] = {}
    for r in records:
        ends.setdefault(label_of(r), []).append(r["accuracy"] or 0.0)
    ranked = sorted(ends, key=lambda label: -statistics.fmean(ends[label]))
    kinds = charts.styles(ranked, DDP, BF16)
    out = []
    if target is not None:
        out.append(
            f"<p>The target is {percent(target)} %: one point below the final accuracy of the worst DDP run. Lines are means over "
            "seeds, bands reach from the lowest to the highest run.</p>\n"
        )
    if any(r["timed"] for r in records):
        out += [
            _against_seconds(records, rate, ranked, kinds, target, task) for rate in summary.rates(records)
        ]
        timed = {r["timed_epochs"] for r in records if r.get("timed_epochs")}
        if timed:
            places = ", ".join(dict.fromkeys(link(r) for r in records if r.get("timed_epochs")))
            out.append(
                f'<p class="hint">At {escape(places)}, {min(timed)} epochs were timed and later ones taken to last as long as '
                "the last of them; the training, which does not depend on the link, is that of the other rate.</p>\n"
            )
    else:
        out.append(
            '<p class="hint">These runs were imported from training; their times were not taken alone on the machine and are left '
            "out.</p>\n"
        )
    out.append(_against_bytes(records, ranked, kinds, target, task))
    for rate in summary.rates(records):
        chosen = next(r for r in records if r["rate"] == rate)
        out.append(_table(summary.rows(records, rate, target), link(chosen), target))
    failed = [r for r in records if r["failed"]]
    if failed:
        words = "; ".join(f"{label_of(r)}, {link(r)}, seed {r['seed']}: {r['failed']}" for r in failed)
        out.append(f'<p class="bad">▼ Failed runs: {escape(words)}</p>\n')
    return "".join(out)


def _mean_curve(runs: Sequence[Record], field: str, label: str, words: str) -> list[charts.Point]:
    """Means over seeds, for evaluations that all seeds have."""
    points = []
    for evaluations in zip(*(r["curve"] for r in runs)):
        scores = [100 * e["accuracy"] for e in evaluations]
        x = statistics.fmean(e[field] for e in evaluations)
        mean = statistics.fmean(scores)
        shown = size(x) if field == "bytes" else f"{number(x)} s"
        title = f"{label}: {mean:.2f} % {words} {shown}, epoch {evaluations[0]['epoch']:g}"
        points.append(charts.Point(x / 1e6 if field == "bytes" else x, mean, title, min(scores), max(scores)))
    return points


def _marks(target: float | None) -> list[charts.Mark]:
    return [] if target is None else [charts.Mark(100 * target, f"target {percent(target)} %")]


def _against_seconds(
    records: Sequence[Record],
    rate: str,
    ranked: Sequence[str],
    kinds: dict[str, str],
    target: float | None,
    task: str,
) -> str:
    chosen = [r for r in records if r["rate"] == rate and r["timed"]]
    series = []
    for label in ranked:
        points = _mean_curve([r for r in chosen if label_of(r) == label], "seconds", label, "after")
        if points:
            series.append(charts.Series(label, kinds[label], points))
    if not series:
        return ""
    caption = f"Accuracy against training time, {link(chosen[0])}"
    across = charts.Axis("seconds of training, evaluations left out")
    drawn = charts.lines(
        f"{caption}: {task}", series, across, charts.Axis("test accuracy", unit=" %"), _marks(target)
    )
    rows = summary.rows(records, rate, target)
    return figure(caption, drawn) + _time_bars(rows, link(chosen[0]), target)


def _time_bars(rows: Sequence[summary.Row], place: str, target: float | None) -> str:
    if target is None or all(row.seconds_to_target is None for row in rows):
        return ""
    bars = []
    for row in rows:
        if row.seconds_to_target is None:
            why = "diverged" if row.accuracy is None else f"ends at {percent(row.accuracy)} %"
            bars.append(charts.Bar(row.label, [], f"▼ {row.reached} of {row.runs} reach it; {why}", "bad"))
            continue
        gain = row.speedup
        kind = {DDP: "plain", BF16: "rival"}.get(row.label, "lost" if row.loses else "backward")
        note = f"{number(row.seconds_to_target)} s"
        if gain is not None and row.label != DDP:
            note += f", {number(gain)} × faster" if gain >= 1 else f", ▼ {number(1 / gain)} × slower"
        words = f"{number(row.seconds_to_target)} s to {percent(target)} %"
        bars.append(charts.Bar(row.label, [(kind, row.seconds_to_target, words)], note, "bad" * row.loses))
    caption = f"Training time to {percent(target)} %, {place}"
    return figure(caption, charts.bars(caption, bars, "seconds of training to the target"))


def _against_bytes(
    records: Sequence[Record], ranked: Sequence[str], kinds: dict[str, str], target: float | None, task: str
) -> str:
    series = []
    for label in ranked:
        runs = {r["seed"]: r for r in records if label_of(r) == label}  # bytes are the same at any rate
        points = [p for p in _mean_curve(list(runs.values()), "bytes", label, "after sending") if p.x > 0]
        if points:
            series.append(charts.Series(label, kinds[label], points))
    if not series:
        return ""
    caption = "Accuracy against bytes sent"
    across = charts.Axis("MB that left a rank", log=True)
    drawn = charts.lines(
        f"{caption}: {task}", series, across, charts.Axis("test accuracy", unit=" %"), _marks(target)
    )
    return figure(caption, drawn)


def _table(rows: Sequence[summary.Row], place: str, target: float | None) -> str:
    plain = next((row.leaving_bytes for row in rows if row.label == DDP), None)
    cells: list[list[Cell | str]] = []
    for row in rows:
        spread = "" if row.spread is None else f" ± {percent(row.spread)}"
        end = (
            Cell("▼ diverged", 0.0, "bad")
            if row.accuracy is None
            else Cell(percent(row.accuracy) + spread, row.accuracy)
        )
        worse = row.gap is not None and row.gap < -summary.MARGIN
        gap = (
            Cell("–")
            if row.gap is None
            else Cell(f"{'▼ ' * worse}{percent(row.gap, True)}", row.gap, "bad" * worse)
        )
        if row.seconds_to_target is not None:
            when = Cell(number(row.seconds_to_target), row.seconds_to_target)
        elif target is None or row.seconds is None:
            when = Cell("–")
        else:
            when = Cell(f"▼ {row.reached} of {row.runs} reach it", style="bad")
        gains = [
            Cell("–") if g is None else Cell(f"{'▼ ' * (g < 1)}{number(g)}", g, "bad" * (g < 1))
            for g in (row.speedup, row.speedup_over_bf16)
        ]
        sent = row.leaving_bytes
        fewer = None if not sent or not plain else plain / sent
        cells.append(
            [
                row.label,
                Cell(str(row.runs), row.runs),
                end,
                gap,
                when,
                *gains,
                Cell("–") if row.seconds is None else Cell(number(row.seconds), row.seconds),
                Cell("–") if sent is None else Cell(size(sent), sent),
                Cell("–") if fewer is None else Cell(f"{number(fewer)} ×", fewer),
            ]
        )
    columns = [
        "method|",
        "runs",
        "final accuracy %",
        "− DDP",
        "s to target",
        "speed-up over DDP",
        "speed-up over bf16",
    ]
    columns += ["s in total", "sent", "fewer bytes"]
    return table(f"{place}: means over seeds, ± standard deviation", columns, cells)
