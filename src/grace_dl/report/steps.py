"""Training steps, on loopback or between hosts: the cost of each method, and the link rates at which it pays off."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from ..bench.results import label_of, of_pytorch, over_plain
from ..bench.selection import DDP, DDP_FP16
from ..formatting import UNLIMITED, escape, link, milliseconds, number, size
from . import charts
from .breakeven import break_even
from .load import Result
from .page import Section, figure, folded, provenance
from .tables import Cell, table

PARTS = ("forward", "backward", "compress", "wait", "decode", "update")
NAMES = {DDP: "plain DDP", DDP_FP16: "DDP, fp16 hook"}

Record = dict[str, Any]


def section(result: Result, anchor: str) -> Section:
    """Everything about one file, by model and number of workers."""
    parts: dict[tuple[str, int, str], list[Record]] = {}
    for r in result.records:
        # Link rates share one chart; other settings, such as hosts reached by ssh, have one each.
        where = "" if result.benchmark == "link" else f", {link(r)}"
        parts.setdefault((r["model"], r["workers"], where), []).append(r)
    body, verdict = [provenance(result)], []
    for (model, workers, where), records in parts.items():
        name = f"{model}, {workers} workers{where}"
        body.append(f"<h3>{escape(name)}</h3>\n{_part(records, name)}")
        verdict += _verdict(records, name)
    models = ", ".join(dict.fromkeys(model for model, _, _ in parts))
    worlds = " and ".join(str(w) for w in dict.fromkeys(workers for _, workers, _ in parts))
    rates = list(dict.fromkeys(link(r) for r in sorted(result.records, key=lambda r: r["bits"])))
    what = "Steps over links" if result.benchmark == "link" else "Steps on one machine"
    title = f"{what}: {models}, {worlds} workers"
    return Section(anchor, title, ", ".join(rates), "".join(body), verdict)


def _verdict(records: Sequence[Record], name: str) -> list[str]:
    """One line: the fastest method at each rate, compared with plain DDP."""
    said: list[str] = []
    for place in sorted({r["bits"] for r in records}):
        own = [r for r in records if r["bits"] == place]
        plain = next((r for r in own if r["method"] == DDP), None)
        others = [r for r in own if not of_pytorch(r)]
        if plain is None or not others:
            continue
        best = min(others, key=lambda r: r["over_reference"])
        gain = 1 / over_plain(best, plain)
        than = "" if said else " faster than plain DDP"
        said.append(f"{'▼ ' if gain < 1 else ''}{number(gain)} ×{than} at {link(best)} ({label_of(best)})")
    return [f"{name}, fastest step: {', '.join(said)}."] if said else []


def _part(records: Sequence[Record], name: str) -> str:
    places = sorted({r["bits"] for r in records})
    found = {(label_of(r), r["bits"]): r for r in records}
    ranked = _ranking(records)
    kinds = charts.styles(ranked, DDP, DDP_FP16)
    out = [_brief(found, ranked, places)]
    if len(places) > 1:
        out.append(_over_silent(found, ranked, places, kinds, name))
        out.append(_speed_up(found, ranked, places, kinds, name))
        out.append(_break_evens(found, ranked, places))
    for place in places:
        chart = _breakdown([found[label, place] for label in ranked if (label, place) in found], name)
        caption = f"Where a step's time goes, {link(_at(records, place))}"
        out.append(chart if len(places) == 1 else folded(caption, chart, opened=place == places[0]))
    out.append(folded("All figures", _all(found, ranked, places), opened=len(places) == 1))
    return "".join(out)


def _ranking(records: Sequence[Record]) -> list[str]:
    """Labels, the fastest over all rates first."""
    logs: dict[str, list[float]] = {}
    for r in records:
        logs.setdefault(label_of(r), []).append(math.log(r["over_reference"]))
    # A method that was not measured everywhere must not rank first because slow links are missing.
    return sorted(logs, key=lambda label: (-len(logs[label]), statistics.fmean(logs[label])))


def _at(records: Sequence[Record], place: float) -> Record:
    return next(r for r in records if r["bits"] == place)


def _brief(
    found: dict[tuple[str, float], Record],
    ranked: Sequence[str],
    places: Sequence[float],
) -> str:
    """For each rate: the cost of plain DDP, the best method, and the methods that are slower than DDP."""
    rows: list[list[Cell | str]] = []
    for place in places:
        own = {label: found[label, place] for label in ranked if (label, place) in found}
        plain, rival = own.get(DDP), own.get(DDP_FP16)
        others = [r for r in own.values() if not of_pytorch(r)]
        if not others:
            continue
        best = min(others, key=lambda r: r["over_reference"])
        row: list[Cell | str] = [Cell(link(best), place), label_of(best)]
        row.append("–" if plain is None else _gain(1 / over_plain(best, plain)))
        row += [
            Cell("–") if r is None else Cell(number(r["over_reference"]), r["over_reference"])
            for r in (best, plain, rival)
        ]
        row.append(Cell(milliseconds(best["reference_seconds"]), best["reference_seconds"]))
        if plain is None:
            row.append("–")
        else:
            slower = [label_of(r) for r in others if over_plain(r, plain) > 1]
            words = f"▼ {len(slower)} of {len(others)}: {_some(slower)}" if slower else "no method"
            row.append(Cell(words, float(len(slower)), "bad" if slower else ""))
        rows.append(row)
    if not rows:  # baselines alone
        return ""
    columns = [
        "link|",
        "best method|",
        "× faster than DDP",
        "its step",
        "plain DDP",
        "fp16 hook",
        "silent step",
        "slower than DDP|",
    ]
    return table("Summary (steps as multiples of the silent step, which has no communication)", columns, rows)


def _some(labels: Sequence[str], most: int = 6) -> str:
    """The first labels, and the number of the others; all are in the table below."""
    rest = len(labels) - most
    return ", ".join(labels[:most]) + (f" and {rest} more" if rest > 0 else "")


def _gain(gain: float) -> Cell:
    return Cell(f"{'▼ ' if gain < 1 else ''}{number(gain)}", gain, "bad" if gain < 1 else "")


def _ticks(
    places: Sequence[float], records: dict[tuple[str, float], Record]
) -> tuple[dict[float, float], charts.Axis]:
    """Rates on a logarithmic axis; unlimited ones are placed slightly beyond the fastest."""
    finite = [p for p in places if p < UNLIMITED]
    where = {p: p for p in finite}
    for p in places:
        if p >= UNLIMITED:
            where[p] = (max(finite) if finite else 1e9) * 10**0.7
    names = {where[r["bits"]]: link(r) for r in records.values()}
    return where, charts.Axis("link rate", log=True, ticks=sorted(names.items()))


def _curves(
    found: dict[tuple[str, float], Record],
    ranked: Sequence[str],
    places: Sequence[float],
    kinds: dict[str, str],
    value: Callable[[str, float], tuple[float, str] | None],
) -> tuple[list[charts.Series], charts.Axis]:
    """One line per label: `value(label, place)` and its text, where available."""
    where, across = _ticks(places, found)
    series = []
    for label in ranked:
        points = []
        for place in places:
            known = value(label, place) if (label, place) in found else None
            if known is not None:
                words = f"{label}, {link(found[label, place])}: {known[1]}"
                points.append(charts.Point(where[place], known[0], words))
        if points:
            series.append(charts.Series(NAMES.get(label, label), kinds[label], points))
    return series, across


def _over_silent(
    found: dict[tuple[str, float], Record],
    ranked: Sequence[str],
    places: Sequence[float],
    kinds: dict[str, str],
    name: str,
) -> str:
    def over(label: str, place: float) -> tuple[float, str]:
        record = found[label, place]
        times = record["over_reference"]
        return times, f"{number(times)} × the silent step ({milliseconds(record['seconds'])})"

    series, across = _curves(found, ranked, places, kinds, over)
    up = charts.Axis("step time ÷ silent step", log=True)
    caption = "Step time relative to a step without communication"
    drawn = charts.lines(f"{caption}: {name}", series, across, up, [charts.Mark(1.0, "silent step")])
    return figure(caption, drawn, _others(ranked, kinds))


def _speed_up(
    found: dict[tuple[str, float], Record],
    ranked: Sequence[str],
    places: Sequence[float],
    kinds: dict[str, str],
    name: str,
) -> str:
    def gain(label: str, place: float) -> tuple[float, str] | None:
        if label == DDP or (DDP, place) not in found:
            return None
        times = 1 / over_plain(found[label, place], found[DDP, place])
        faster = f"{number(times)} × as fast as plain DDP"
        return times, faster if times >= 1 else f"{number(1 / times)} × slower than plain DDP"

    series, across = _curves(found, ranked, places, kinds, gain)
    if not series:
        return ""
    caption = "Speed-up over plain DDP"
    mark = charts.Mark(1.0, "plain DDP; below it, compression loses", below=True)
    up = charts.Axis("time of plain DDP ÷ time", log=True, unit=" ×")
    drawn = charts.lines(f"{caption}: {name}", series, across, up, [mark])
    return figure(caption, drawn, _others(ranked, kinds))


def _others(ranked: Sequence[str], kinds: dict[str, str]) -> str:
    grey = [label for label in ranked if kinds[label] == "rest"]
    if not grey:
        return ""
    return (
        f'<p class="hint">Thin grey lines, named where the pointer rests on them: {escape(", ".join(grey))}. '
        f"The {charts.COLOURS} fastest methods over all rates are coloured.</p>"
    )


def _break_evens(
    found: dict[tuple[str, float], Record], ranked: Sequence[str], places: Sequence[float]
) -> str:
    def over(label: str, baseline: str) -> dict[float, float]:
        both = {
            p: (found[label, p], found[baseline, p])
            for p in places
            if {(label, p), (baseline, p)} <= found.keys()
        }
        if baseline == DDP:
            return {p: over_plain(r, plain) for p, (r, plain) in both.items()}
        return {p: r["over_reference"] / rival["over_reference"] for p, (r, rival) in both.items()}

    rows: list[list[Cell | str]] = []
    for label in ranked:
        if label in (DDP, DDP_FP16):
            continue
        row: list[Cell | str] = [label]
        for baseline in (DDP, DDP_FP16):
            ratios = over(label, baseline)
            even = break_even(ratios, dict.fromkeys(ratios, 1.0))
            never = even is not None and even.bits == 0
            row.append(
                Cell("–") if even is None else Cell(f"{'▼ ' * never}{even.text}", even.bits, "bad" * never)
            )
        rows.append(row)
    rows.sort(key=lambda row: -(row[1].value or 0.0) if isinstance(row[1], Cell) else 0.0)
    caption = "Break-even: the link rate above which the baseline is faster, interpolated in log rate between measured ones"
    return table(caption, ["method|", "against plain DDP", "against the fp16 hook"], rows)


def _breakdown(records: Sequence[Record], name: str) -> str:
    rows = []
    for r in sorted(records, key=lambda r: r["over_reference"]):
        ours = not of_pytorch(r)
        parts = []
        for part in PARTS:
            seconds = max(0.0, r["parts"].get(part, 0.0))
            kind, word = (
                (part, part)
                if ours or part != "backward"
                else ("exchange", "backward with DDP's own exchange")
            )
            if seconds:
                parts.append((kind, 1e3 * seconds, f"{word} {milliseconds(seconds)}"))
        note = f"{milliseconds(r['seconds'])}, {number(r['over_reference'])} ×"
        rows.append(charts.Bar(NAMES.get(label_of(r)) or label_of(r), parts, note))
    silent = statistics.median(r["reference_seconds"] for r in records)
    place = link(records[0])
    drawn = charts.bars(
        f"Step breakdown: {name}, {place}",
        rows,
        "milliseconds per step",
        (1e3 * silent, f"silent step {milliseconds(silent)}"),
    )
    keys = [(part, part) for part in PARTS] + [("exchange", "backward with DDP's own exchange")]
    return figure(f"Parts of a step, {place}", charts.legend(keys), drawn)


def _all(found: dict[tuple[str, float], Record], ranked: Sequence[str], places: Sequence[float]) -> str:
    rows: list[list[Cell | str]] = []
    for p in places:
        plain = found.get((DDP, p))
        own = [found[label, p] for label in ranked if (label, p) in found]
        for r in sorted(own, key=lambda r: r["over_reference"]):
            row: list[Cell | str] = [
                label_of(r),
                Cell(link(r), p),
                Cell(number(1e3 * r["seconds"]), r["seconds"]),
                Cell(number(r["over_reference"]), r["over_reference"]),
                Cell("–") if plain is None else _gain(1 / over_plain(r, plain)),
            ]
            for part in ("compress", "wait", "decode"):
                value = r["parts"].get(part, 0.0)
                row.append(Cell("–") if of_pytorch(r) else Cell(number(1e3 * value), value))
            sent, peak = r["leaving_bytes"], r.get("peak_bytes") or 0
            row.append(Cell("–") if of_pytorch(r) else Cell(size(sent), sent))
            row.append(Cell(size(peak), peak) if peak else "–")
            rows.append(row)
    columns = [
        "method|",
        "link|",
        "ms",
        "÷ silent",
        "× DDP",
        "compress ms",
        "wait ms",
        "decode ms",
        "sent",
        "peak memory",
    ]
    return table("Per step and rank; × DDP is the speed-up over plain DDP", columns, rows)
