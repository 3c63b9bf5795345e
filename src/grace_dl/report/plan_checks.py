"""Predictions of the cost model beside measurements: `grace plan --validate` and `grace plan --check`."""

from __future__ import annotations

import statistics

from ..formatting import escape
from .load import Result
from .page import Section, folded, provenance
from .tables import Cell, table

_TITLES = {
    "plan-validation": "Predictions beside public measurements",
    "plan-check": "Predictions beside measured steps",
}


def section(result: Result, anchor: str) -> Section:
    """The errors as a sentence, and a table of all predictions for each model."""
    errors = [abs(r["predicted"] / r["measured"] - 1) for r in result.records]
    within = sum(error <= 0.25 for error in errors) / len(errors)
    summary = f"{len(errors)} steps, median error {statistics.median(errors):.1%}, {within:.0%} within 25 %"
    body = [f"<p>{escape(summary)}</p>"]
    for model in dict.fromkeys(r["model"] for r in result.records):
        rows: list[list[Cell | str]] = []
        for r in (r for r in result.records if r["model"] == model):
            ratio = r["predicted"] / r["measured"]
            where = (
                f"{r['workers']} × {r['rate']}"
                if result.benchmark == "plan-check"
                else "fitted"
                if r.get("fitted")
                else "from bytes"
            )
            rows.append(
                [r["method"], where, Cell(f"{ratio:.2f}", ratio, "" if 0.75 <= ratio <= 1.25 else "bad")]
            )
        shown = table(f"{model}: predicted ÷ measured step time", ["method|", "setting|", "ratio"], rows)
        body.append(folded(model, shown))
    return Section(anchor, _TITLES[result.benchmark], summary, "".join([*body, provenance(result)]))
