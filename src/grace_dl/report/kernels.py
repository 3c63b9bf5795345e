"""What compressing and decoding cost, in copies of the tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import charts
from .load import Result
from .page import Section, figure, folded, provenance
from .tables import Cell, table
from .words import number

Record = dict[str, Any]
PARTS = (("compress", "compress with error feedback"), ("decode", "decode one peer"))


def section(result: Result, anchor: str) -> Section:
    """Bars for every size and backend, the largest native first, and one table."""
    sizes = sorted({r["numel"] for r in result.records}, reverse=True)
    backends = sorted({r["backend"] for r in result.records}, key=lambda name: (name != "native", name))
    body = [provenance(result)]
    for backend in backends:
        for numel in sizes:
            chosen = [r for r in result.records if (r["backend"], r["numel"]) == (backend, numel)]
            if not chosen:
                continue
            first = numel == sizes[0] and backend == backends[0]
            chart = _chart(chosen, backend, numel)
            body.append(chart if first else folded(f"{backend}, {numel:,} elements", chart))
    body.append(folded("All figures", _table(result.records), opened=len(result.records) <= 40))
    summary = f"{len({r['label'] for r in result.records})} methods, up to {sizes[0]:,} elements; {', '.join(backends)}"
    return Section(anchor, "Kernels in memory copies", summary, "".join(body))


def _chart(records: Sequence[Record], backend: str, numel: int) -> str:
    threads = sorted({r["threads"] for r in records})
    costs = {r["label"]: _cost(r) for r in records if r["threads"] == threads[-1]}
    rows = []
    for label in sorted({r["label"] for r in records}, key=lambda label: costs.get(label, 0.0)):
        for count in threads:
            for r in (r for r in records if (r["label"], r["threads"]) == (label, count)):
                parts = [
                    (part, r[f"{part}_copies"], f"{words} {number(r[f'{part}_copies'])} copies")
                    for part, words in PARTS
                ]
                name = label if len(threads) == 1 else f"{label}, {count} thread{'s' * (count > 1)}"
                rows.append(charts.Bar(name, parts, f"{number(_cost(r))} copies, {number(r['bits'])} bits"))
    caption = f"{backend} kernels, {numel:,} float32"
    drawn = charts.bars(caption, rows, "times the duration of copy_ of the same tensor", (1.0, "one copy"))
    return figure(caption, charts.legend(PARTS), drawn)


def _cost(record: Record) -> float:
    return float(record["compress_copies"] + record["decode_copies"])


def _table(records: Sequence[Record]) -> str:
    rows: list[list[Cell | str]] = [
        [
            r["label"],
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
