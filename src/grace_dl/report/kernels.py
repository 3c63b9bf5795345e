"""Time of compression and decoding, relative to a copy of the tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..formatting import number
from . import charts
from .load import Result
from .page import Section, figure, folded, provenance
from .tables import Cell, table

Record = dict[str, Any]
PARTS = (("compress", "compress with error feedback"), ("decode", "decode one peer"))


def section(result: Result, anchor: str) -> Section:
    """Bars for every size and backend, the largest native first, and one table."""
    body = [provenance(result)]
    kinds = sorted(
        {(r["backend"], r["numel"], r["threads"]) for r in result.records},
        key=lambda kind: (kind[0] != "native", -kind[1], kind[2]),
    )
    for place, (backend, numel, threads) in enumerate(kinds):
        name = f"{backend} kernels, {numel:,} float32, {threads} thread{'s' * (threads > 1)}"
        chosen = [r for r in result.records if (r["backend"], r["numel"], r["threads"]) == kinds[place]]
        chart = _chart(chosen, name)
        body.append(folded(name, chart) if place else chart)
    body.append(folded("All figures", _table(result.records), opened=len(result.records) <= 40))
    methods, largest = len({r["method"] for r in result.records}), max(r["numel"] for r in result.records)
    backends = ", ".join(dict.fromkeys(kind[0] for kind in kinds))
    summary = f"{methods} methods, up to {largest:,} elements; {backends}"
    return Section(anchor, "Kernels in memory copies", summary, "".join(body))


def _chart(records: Sequence[Record], name: str) -> str:
    rows = []
    for r in sorted(records, key=_cost):
        parts = [
            (part, r[f"{part}_copies"], f"{words} {number(r[f'{part}_copies'])} copies")
            for part, words in PARTS
        ]
        rows.append(charts.Bar(r["method"], parts, f"{number(_cost(r))} copies, {number(r['bits'])} bits"))
    drawn = charts.bars(name, rows, "times the duration of copy_ of the same tensor", (1.0, "one copy"))
    return figure(name, charts.legend(PARTS), drawn)


def _cost(record: Record) -> float:
    return float(record["compress_copies"] + record["decode_copies"])


def _table(records: Sequence[Record]) -> str:
    rows: list[list[Cell | str]] = [
        [
            r["method"],
            r["backend"],
            Cell(str(r["threads"]), r["threads"]),
            Cell(f"{r['numel']:,}", r["numel"]),
            Cell(number(r["bits"]), r["bits"]),
            Cell(number(r["compress_copies"]), r["compress_copies"]),
            Cell(number(r["decode_copies"]), r["decode_copies"]),
            Cell(number(_cost(r)), _cost(r)),
        ]
        for r in sorted(
            records, key=lambda r: (-r["numel"], r["backend"] != "native", r["threads"], _cost(r))
        )
    ]
    columns = ["method|", "backend|", "threads", "elements", "bits", "compress", "decode", "both"]
    return table("Costs in copies of the tensor; bits per element on the wire", columns, rows)
