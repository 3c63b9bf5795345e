"""Checks of the cost model against measurements: `grace plan --validate` and `--check`."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ..bench.plan_check import compare
from ..bench.plan_validation import FIT, PREDICT, Measurements, Summary, rank_correlation
from ..bench.results import Results
from ..console import output


def validate(data: Path, out: Path) -> None:
    """Predict 8 workers of every setting in the public data, and show and save the errors."""
    found = Measurements(data)
    checks = {model: found.check(model) for model in found.models}
    console = output()
    table = Table(title=f"Predictions for {PREDICT} workers, fitted on {', '.join(map(str, FIT))}")
    table.add_column("model")
    for column in ("settings", "rank correlation", "median error", "fitted", "from bytes"):
        table.add_column(column, justify="right")
    table.add_column("largest miss")
    for model, rows in checks.items():
        whole = Summary.of(rows)
        medians = []
        for fitted in (True, False):
            part = [check for check in rows if check.fitted == fitted]
            medians.append(f"{Summary.of(part).median:.1%} of {len(part)}" if part else "")
        miss = f"{whole.worst.case.label} {whole.worst.error:+.0%}"
        table.add_row(
            model, str(whole.count), f"{rank_correlation(rows):.2f}", f"{whole.median:.1%}", *medians, miss
        )
    console.print(table)
    everything = [check for rows in checks.values() for check in rows]
    for label, fitted in (("fitted on fewer workers", True), ("predicted from bytes", False)):
        summary = Summary.of([check for check in everything if check.fitted == fitted])
        console.print(
            f"{label}: {summary.count} settings, median error {summary.median:.1%}, nine of ten within {summary.largest_of_nine_in_ten:.0%}"
        )
    results = Results(
        out, "plan-validation", {"data": data.name, "fit": list(FIT), "predict": PREDICT}, fresh=True
    )
    results.add_all(
        {
            f"{check.case.model}/{check.case.label}": {
                "model": check.case.model,
                "method": check.case.label,
                "exchange": check.case.exchange,
                "predicted": check.predicted,
                "measured": check.measured,
                "fitted": check.fitted,
            }
            for check in everything
        }
    )
    console.print(f"Results: {out.resolve()}", soft_wrap=True)


def check(files: list[Path], out: Path, fresh: bool = False) -> None:
    """Compare predictions with steps measured by `grace bench link`, and show and save the ratios.

    `fresh`: measure codecs again instead of using cached costs.
    """
    console = output()
    with console.status("reading") as status:
        found = compare(files, status.update, fresh=fresh)
    settings = list(dict.fromkeys((c.model, c.workers, c.rate) for c in found))
    ratios = {(c.model, c.workers, c.rate, c.method): c.ratio for c in found}
    for model in dict.fromkeys(model for model, _, _ in settings):
        table = Table(title=f"Predicted ÷ measured step time, {model}")
        table.add_column("method")
        columns = [(workers, rate) for name, workers, rate in settings if name == model]
        for workers, rate in columns:
            table.add_column(f"{workers} × {rate}", justify="right")
        for method in dict.fromkeys(c.method for c in found if c.model == model):
            cells = [ratios.get((model, *column, method)) for column in columns]
            table.add_row(method, *("" if ratio is None else _ratio(ratio) for ratio in cells))
        console.print(table)
    errors = sorted(abs(c.ratio - 1) for c in found)
    within = sum(error <= 0.25 for error in errors) / len(errors)
    console.print(
        f"{len(errors)} steps: median error {statistics.median(errors):.1%}, {within:.0%} within 25 %"
    )
    results = Results(out, "plan-check", {"files": [path.name for path in files]}, fresh=True)
    results.add_all({f"{c.model}/{c.workers}/{c.rate}/{c.method}": asdict(c) for c in found})
    console.print(f"Results: {out.resolve()}", soft_wrap=True)


def _ratio(ratio: float) -> Text:
    return Text(f"{ratio:.2f}", "" if 0.9 <= ratio <= 1.1 else "yellow" if 0.75 <= ratio <= 1.25 else "red")
