"""Predictions of `grace plan`: the verdict, the methods on the cluster, and curves over workers and link rates."""

from __future__ import annotations

from typing import Any

from ..formatting import escape, milliseconds, number, rate, size
from ..plan.predict import DDP
from . import charts
from .load import Result
from .page import Section, figure, provenance
from .tables import Cell, table

Record = dict[str, Any]
_PARTS = (
    ("forward", "compute", "forward, backward and update"),
    ("compress", "codec", "encoding and decoding"),
    ("wait", "waiting", "waiting for the network"),
)


def section(result: Result, anchor: str) -> Section:
    """Verdict, table, bars and curves."""
    settings = result.header["settings"]
    here = sorted(_of(result, "here"), key=lambda r: r["seconds"])
    kinds = charts.styles([r["method"] for r in here], DDP, "ddp-fp16")
    cluster = str(settings.get("cluster", ""))
    body = [
        f"<p><strong>{escape(settings.get('verdict', ''))}</strong></p>",
        _table(here, cluster),
        _exchanges(here),
        _bars(here, cluster),
        _curves(_of(result, "workers"), kinds, "workers", charts.Axis("workers", log=True), str),
        _curves(
            _of(result, "rates"),
            kinds,
            "bits",
            charts.Axis("link rate of a node, Gbit/s", log=True),
            rate,
            1e9,
        ),
        _best(_of(result, "best")),
        provenance(result),
    ]
    title = f"Prediction: {settings.get('model', '')} on {cluster}"
    words = f"fastest: {here[0]['method']}, {here[0]['speedup']:.2f} × plain DDP"
    verdict = [f"{title}. {settings['verdict']}"] if settings.get("verdict") else []
    return Section(anchor, title, words, "".join(body), verdict)


def _of(result: Result, kind: str) -> list[Record]:
    return [r for r in result.records if r["kind"] == kind]


def _table(records: list[Record], cluster: str) -> str:
    rows: list[list[Cell | str]] = []
    for r in records:
        style = "bad" if r["speedup"] < 1 else ""
        bits = r.get("break_even")
        below = "" if bits is None else "never" if bits == 0 else "always" if bits >= 1e14 else rate(bits)
        rows.append(
            [
                r["method"],
                Cell(milliseconds(r["seconds"]), r["seconds"]),
                Cell(f"{r['speedup']:.2f}", r["speedup"], style),
                Cell(f"{r['efficiency']:.0%}", r["efficiency"]),
                Cell(size(r["leaving_bytes"]), r["leaving_bytes"]),
                Cell(below, bits),
            ]
        )
    columns = ["method|", "step", "speed-up", "efficiency", "leaves a rank", "pays below"]
    return table(f"Predicted step on {cluster}; speed-up over plain DDP", columns, rows)


def _exchanges(records: list[Record]) -> str:
    """What local steps exchange how often."""
    rows: list[list[Cell | str]] = [
        [
            r["method"],
            Cell(str(r["every"]), r["every"]),
            Cell(size(r["exchange_bytes"]), r["exchange_bytes"]),
            Cell(milliseconds(r["exchange_seconds"]), r["exchange_seconds"]),
            Cell(milliseconds(r["every"] * r.get("waiting", 0.0)), r["every"] * r.get("waiting", 0.0)),
        ]
        for r in records
        if "every" in r
    ]
    columns = ["rule|", "steps between exchanges", "leaves a rank", "exchange", "of it waited for"]
    return table("Exchanges of local steps", columns, rows) if rows else ""


def _bars(records: list[Record], cluster: str) -> str:
    rows = [
        charts.Bar(
            r["method"],
            [
                (kind, 1e3 * r.get(part, 0.0), f"{words}, {milliseconds(r.get(part, 0.0))}")
                for kind, part, words in _PARTS
            ],
            milliseconds(r["seconds"]),
        )
        for r in records
    ]
    drawn = charts.bars(f"Parts of a step on {cluster}", rows, "ms")
    return figure("Where the time goes", charts.legend([(kind, words) for kind, _, words in _PARTS]), drawn)


def _curves(
    records: list[Record], kinds: dict[str, str], field: str, axis: charts.Axis, text: Any, unit: float = 1.0
) -> str:
    if not records:
        return ""
    series = []
    for method in dict.fromkeys(r["method"] for r in records):
        points = [
            charts.Point(
                r[field] / unit,
                r["speedup"],
                f"{method}, {text(r[field])}: {number(r['speedup'])} × plain DDP, {milliseconds(r['seconds'])}",
            )
            for r in sorted((r for r in records if r["method"] == method), key=lambda r: r[field])
        ]
        series.append(charts.Series(method, kinds.get(method, "rest"), points))
    drawn = charts.lines(
        f"Speed-up by {field}",
        series,
        axis,
        charts.Axis("speed-up over plain DDP", log=True),
        [charts.Mark(1.0, "plain DDP", below=True)],
    )
    return figure(f"Speed-up over plain DDP by {'workers' if field == 'workers' else 'link rate'}", drawn)


def _best(records: list[Record]) -> str:
    rates = sorted({r["bits"] for r in records})
    found = {(r["workers"], r["bits"]): r for r in records}
    rows: list[list[Cell | str]] = []
    for workers in sorted({r["workers"] for r in records}):
        cells = [found.get((workers, bits)) for bits in rates]
        rows.append(
            [
                f"{workers:,}",
                *(
                    Cell(
                        ""
                        if r is None
                        else r["method"]
                        if r["method"] == DDP
                        else f"{r['method']} {r['speedup']:.2g} ×"
                    )
                    for r in cells
                ),
            ]
        )
    return table(
        "The fastest by workers and link rate", ["workers|", *(f"{rate(bits)}|" for bits in rates)], rows
    )
