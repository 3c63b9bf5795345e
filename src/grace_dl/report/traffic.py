"""Bytes that leave a rank, as reported and as counted on its network interface."""

from __future__ import annotations

from ..formatting import number, size
from . import charts
from .load import Result
from .page import Section, figure, provenance
from .tables import Cell, table

SIZES = (
    ("payload", "payload_bytes", "handed to collectives"),
    ("leaving", "leaving_bytes", "leaving the rank, as reported by statistics"),
    ("wire", "measured_bytes", "counted on the network interface"),
)


def section(result: Result, anchor: str) -> Section:
    """A group of bars for each communicator and number of hosts, and the table."""
    body = [provenance(result)]
    worlds = sorted({r["workers"] for r in result.records})
    for workers in worlds:
        rows = []
        for r in (r for r in result.records if r["workers"] == workers):
            for place, (kind, field, words) in enumerate(SIZES):
                part = (kind, r[field] / 1e6, f"{words}, {size(r[field])}")
                rows.append(charts.Bar("" if place else r["method"], [part], size(r[field])))
        drawn = charts.bars(
            f"Bytes per rank and step, {workers} hosts", rows, "MB per rank and step", whole=True
        )
        keys = [(kind, words) for kind, _, words in SIZES]
        body.append(
            figure(f"{workers} hosts, {result.records[0]['numel']:,} float32", charts.legend(keys), drawn)
        )
    rows_: list[list[Cell | str]] = [
        [
            r["method"],
            Cell(str(r["workers"]), r["workers"]),
            *(Cell(size(r[field]), r[field]) for _, field, _ in SIZES),
            Cell(number(r["leaving_bytes"] / r["payload_bytes"]), r["leaving_bytes"] / r["payload_bytes"]),
            Cell(
                number(r["measured_bytes"] / r["leaving_bytes"], 4), r["measured_bytes"] / r["leaving_bytes"]
            ),
        ]
        for r in sorted(result.records, key=lambda r: (r["workers"], r["measured_bytes"]))
        if r["payload_bytes"] and r["leaving_bytes"]
    ]
    columns = [
        "method|",
        "hosts",
        "payload",
        "leaving",
        "on the wire",
        "leaving ÷ payload",
        "wire ÷ leaving",
    ]
    body.append(
        table("Per rank and step; the wire includes protocol headers and acknowledgements", columns, rows_)
    )
    ratios = [r["measured_bytes"] / r["leaving_bytes"] for r in result.records if r["leaving_bytes"]]
    verdict = (
        [
            f"Bytes counted on the wire are {number(min(ratios), 4)} to {number(max(ratios), 4)} times the reported ones."
        ]
        if ratios
        else []
    )
    hosts = ", ".join(str(w) for w in worlds)
    words = f"{hosts} hosts, {result.records[0]['numel']:,} float32"
    return Section(anchor, "Bytes on the wire", words, "".join(body), verdict)
