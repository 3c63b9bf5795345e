"""Accuracy by time and bytes, and the time to a target."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..bench import summary
from ..bench.results import label_of
from ..bench.selection import DDP
from ..bench.summary import BF16
from ..bench.target import ACCURACY, LOSS, MARGIN, Target, shown
from ..formatting import escape, link, number, percent, size
from . import charts
from .load import Result
from .page import Section, figure, provenance
from .tables import Cell, table

Record = dict[str, Any]


def section(result: Result, anchor: str) -> Section:
    """Everything about one study: curves and tables for each task and link rate."""
    body, verdict = [provenance(result)], []
    groups = summary.groups(result.records)
    for (task, epochs, workers), records in groups.items():
        name = f"{task}, {epochs} epochs, {workers} workers"
        body.append(f"<h3>{escape(name)}</h3>\n")
        body.append(_group(records, task))
        verdict += _verdict(records, name)
    tasks = ", ".join(dict.fromkeys(task for task, _, _ in groups))
    labels, seeds = {label_of(r) for r in result.records}, {r["seed"] for r in result.records}
    rates = list(dict.fromkeys(link(r) for r in sorted(result.records, key=lambda r: r["bits"])))
    words = f"{len(labels)} methods, {len(seeds)} seed{'s' * (len(seeds) > 1)}; {', '.join(rates)}"
    return Section(anchor, f"Accuracy: {tasks}", words, "".join(body), verdict)


def _verdict(records: Sequence[Record], name: str) -> list[str]:
    """One line: the first method to reach the target at each rate, or what untimed runs say."""
    target = Target.default(records)
    said = []
    for rate in summary.rates(records):
        rows = summary.rows(records, rate, target)
        plain = next((row for row in rows if row.label == DDP), None)
        others = [row for row in rows if row.label != DDP and row.accuracy is not None]
        if plain is None or plain.accuracy is None or target is None or not others:
            continue
        place = link(next(r for r in records if r["rate"] == rate))
        timed = [row for row in others if row.speedup is not None]
        if timed:
            best = max(timed, key=lambda row: row.speedup or 0.0)
            gain = best.speedup or 0.0
            sooner = f"{number(gain)} × sooner than" if gain >= 1 else f"▼ {number(1 / gain)} × later than"
            said.append(
                f"at {place}, {best.label} reaches {target} {sooner} plain DDP, and ends at "
                f"{_end(best, target)} (DDP {_end(plain, target)})"
            )
        else:
            close = sum(not _worse(row, target) for row in others)
            below = "one percent above the loss of" if target.field == LOSS else "one point below"
            said.append(f"{close} of {len(others)} methods end at most {below} plain DDP")
    return [f"{name}: {'; '.join(said)}."] if said else []


def _end(row: summary.Row, target: Target) -> str:
    value = row.loss if target.field == LOSS else row.accuracy
    return "a failure" if value is None else shown(value, target.field)


def _worse(row: summary.Row, target: Target | None) -> bool:
    """Whether a method ends further behind plain DDP than the default target allows."""
    if target is not None and target.field == LOSS:
        return row.loss_over_ddp is None or row.loss_over_ddp > 1 + MARGIN
    return row.gap is None or row.gap < -MARGIN


def _group(records: Sequence[Record], task: str) -> str:
    target = Target.default(records)
    ends: dict[str, list[float]] = {}
    for r in records:
        ends.setdefault(label_of(r), []).append(r["accuracy"] or 0.0)
    ranked = sorted(ends, key=lambda label: -statistics.fmean(ends[label]))
    worst = (
        "one percent above the final loss"
        if target is not None and target.field == LOSS
        else "one point below the final accuracy"
    )
    kinds = charts.styles(ranked, DDP, BF16)
    out = []
    if target is not None:
        out.append(
            f"<p>The target is {target}: {worst} of the worst DDP run. Lines are means over seeds, bands reach from the lowest "
            "to the highest run.</p>\n"
        )
    if any(r["timed"] for r in records):
        out += [
            _against_seconds(records, rate, ranked, kinds, target, task) for rate in summary.rates(records)
        ]
        timed = {r["timed_epochs"] for r in records if r.get("timed_epochs")}
        if timed:
            places = ", ".join(dict.fromkeys(link(r) for r in records if r.get("timed_epochs")))
            out.append(
                f'<p class="hint">At {escape(places)}, {min(timed):g} epochs were timed, and later steps taken to be as fast as the '
                "second half of these; the training, which does not depend on the link, is that of the other rate.</p>\n"
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


@dataclass(frozen=True)
class Measure:
    """What a chart shows of every evaluation."""

    field: str
    caption: str
    axis: charts.Axis
    factor: float
    unit: str


MEASURES = (
    Measure(ACCURACY, "Accuracy", charts.Axis("test accuracy", unit=" %"), 100, " %"),
    Measure(LOSS, "Loss", charts.Axis("test loss"), 1, ""),
)


def _mean_curve(
    runs: Sequence[Record], field: str, label: str, words: str, shows: Measure
) -> list[charts.Point]:
    """Means over seeds, for evaluations that all seeds have."""
    points = []
    for evaluations in zip(*(r["curve"] for r in runs)):
        if any(shows.field not in e for e in evaluations):
            continue
        scores = [shows.factor * e[shows.field] for e in evaluations]
        x = statistics.fmean(e[field] for e in evaluations)
        mean = statistics.fmean(scores)
        shown = size(x) if field == "bytes" else f"{number(x)} s"
        digits = 2 if shows.field == ACCURACY else 4
        title = f"{label}: {mean:.{digits}f}{shows.unit} {words} {shown}, epoch {evaluations[0]['epoch']:g}"
        points.append(charts.Point(x / 1e6 if field == "bytes" else x, mean, title, min(scores), max(scores)))
    return points


def _marks(target: Target | None, shows: Measure) -> list[charts.Mark]:
    if target is None or shows.field != target.field:
        return []
    return [charts.Mark(shows.factor * target.value, f"target: {target}")]


def _against_seconds(
    records: Sequence[Record],
    rate: str,
    ranked: Sequence[str],
    kinds: dict[str, str],
    target: Target | None,
    task: str,
) -> str:
    chosen = [r for r in records if r["rate"] == rate and r["timed"]]
    drawn = []
    for shows in MEASURES:
        series = []
        for label in ranked:
            runs = [r for r in chosen if label_of(r) == label]
            if points := _mean_curve(runs, "seconds", label, "after", shows):
                series.append(charts.Series(label, kinds[label], points))
        if series:
            caption = f"{shows.caption} against training time, {link(chosen[0])}"
            across = charts.Axis("seconds of training, evaluations left out")
            lines = charts.lines(f"{caption}: {task}", series, across, shows.axis, _marks(target, shows))
            drawn.append(figure(caption, lines))
    if not drawn:
        return ""
    return "".join(drawn) + _time_bars(summary.rows(records, rate, target), link(chosen[0]), target)


def _time_bars(rows: Sequence[summary.Row], place: str, target: Target | None) -> str:
    if target is None or all(row.seconds_to_target is None for row in rows):
        return ""
    bars = []
    for row in rows:
        if row.seconds_to_target is None:
            why = "diverged" if row.accuracy is None else f"ends at {_end(row, target)}"
            bars.append(charts.Bar(row.label, [], f"▼ {row.reached} of {row.runs} reach it; {why}", "bad"))
            continue
        gain = row.speedup
        kind = {DDP: "plain", BF16: "rival"}.get(row.label, "lost" if row.loses else "backward")
        note = f"{number(row.seconds_to_target)} s"
        if gain is not None and row.label != DDP:
            note += f", {number(gain)} × faster" if gain >= 1 else f", ▼ {number(1 / gain)} × slower"
        words = f"{number(row.seconds_to_target)} s to {target}"
        bars.append(charts.Bar(row.label, [(kind, row.seconds_to_target, words)], note, "bad" * row.loses))
    caption = f"Training time to {target}, {place}"
    return figure(caption, charts.bars(caption, bars, "seconds of training to the target"))


def _against_bytes(
    records: Sequence[Record], ranked: Sequence[str], kinds: dict[str, str], target: Target | None, task: str
) -> str:
    drawn = []
    for shows in MEASURES:
        series = []
        for label in ranked:
            runs = {r["seed"]: r for r in records if label_of(r) == label}  # bytes are the same at any rate
            curve = _mean_curve(list(runs.values()), "bytes", label, "after sending", shows)
            if points := [p for p in curve if p.x > 0]:
                series.append(charts.Series(label, kinds[label], points))
        if series:
            caption = f"{shows.caption} against bytes sent"
            across = charts.Axis("MB that left a rank", log=True)
            lines = charts.lines(f"{caption}: {task}", series, across, shows.axis, _marks(target, shows))
            drawn.append(figure(caption, lines))
    return "".join(drawn)


def _table(rows: Sequence[summary.Row], place: str, target: Target | None) -> str:
    plain = next((row.leaving_bytes for row in rows if row.label == DDP), None)
    cells: list[list[Cell | str]] = []
    for row in rows:
        spread = "" if row.spread is None else f" ± {percent(row.spread)}"
        loss_spread = "" if row.loss_spread is None else f" ± {row.loss_spread:.4f}"
        end = (
            Cell("▼ diverged", 0.0, "bad")
            if row.accuracy is None
            else Cell(percent(row.accuracy) + spread, row.accuracy)
        )
        by_loss = target is not None and target.field == LOSS
        worse = row.gap is not None and _worse(row, target)
        gap = (
            Cell("–")
            if row.gap is None
            else Cell(
                f"{'▼ ' * (worse and not by_loss)}{percent(row.gap, True)}",
                row.gap,
                "bad" * (worse and not by_loss),
            )
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
                Cell("–") if row.loss is None else Cell(f"{row.loss:.4f}{loss_spread}", row.loss),
                Cell("–")
                if row.loss_over_ddp is None
                else Cell(
                    f"{'▼ ' * (worse and by_loss)}{row.loss_over_ddp:.4f}",
                    row.loss_over_ddp,
                    "bad" * (worse and by_loss),
                ),
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
        "final loss",
        "÷ DDP",
        "s to target",
        "speed-up over DDP",
        "speed-up over bf16",
    ]
    columns += ["s in total", "sent", "fewer bytes"]
    return table(f"{place}: means over seeds, ± standard deviation", columns, cells)
