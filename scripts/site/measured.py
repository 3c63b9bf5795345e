"""What the published result files say about a method, as Markdown."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grace_dl.algebra.named import Named
from grace_dl.algebra.text import is_rule, parse
from grace_dl.bench import summary
from grace_dl.bench.results import label_of, over_plain
from grace_dl.bench.selection import BASELINES, DDP, FSDP
from grace_dl.formatting import link, number, percent, size
from grace_dl.report.load import Result, read

Record = dict[str, Any]
__all__ = ["Result", "results", "sections"]


def results(folder: Path) -> list[Result]:
    """All result files of a folder."""
    return read(sorted(folder.glob("*.json"), key=lambda path: path.stem))


def sections(name: str, files: Sequence[Result]) -> Iterator[str]:
    """Accuracy, step times and kernel costs of a method, with the machine and date of each file."""
    makers = {"accuracy": _accuracy, "link": _links, "kernels": _kernels}
    for kind, maker in makers.items():
        for result in files:
            lines = list(maker(name, result)) if result.benchmark == kind else []
            if lines:
                yield from (*lines, "", _origin(result), "")


def _origin(result: Result) -> str:
    machine = result.header["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, GRACE {machine['grace']}"
    return f"*{result.header['date'][:10]}, {where}; `benchmarks/{result.name}`, explained in [benchmarks](../docs/benchmarks.md).*"


def _is(name: str, record: Record) -> bool:
    return name in _names(record["method"])


@functools.cache
def _names(method: str) -> frozenset[str]:
    """The methods that a text form uses at every step; none in a rule for local steps."""
    parts = () if method in (*BASELINES, FSDP) or is_rule(method) else parse(method).parts()
    return frozenset(part.name for part in parts if isinstance(part, Named))


def _accuracy(name: str, result: Result) -> Iterator[str]:
    for (task, epochs, workers), records in summary.groups(result.records).items():
        labels = {label_of(record) for record in records if _is(name, record)}
        if not labels:
            continue
        # Training does not depend on the link, so one of its rates says all.
        rate = summary.rates(records)[0]
        rows = [row for row in summary.rows(records, rate, None) if row.label in (*labels, DDP)]
        yield from (f"### Accuracy: {task}, {epochs} epochs, {workers} workers", "")
        yield from ("| | accuracy, % | − float32 | sent per rank | runs |", "|---|--:|--:|--:|--:|")
        for row in sorted(rows, key=lambda row: row.label == DDP):
            label = "float32 (plain DDP)" if row.label == DDP else f"`{row.label}`"
            yield f"| {label} | {_mean(row)} | {_gap(row)} | {_sent(row)} | {row.runs} |"
        yield ""


def _mean(row: summary.Row) -> str:
    if row.accuracy is None:
        return "failed"
    return percent(row.accuracy) + (f" ± {percent(row.spread)}" if row.spread is not None else "")


def _gap(row: summary.Row) -> str:
    return "" if row.gap is None or row.label == DDP else percent(row.gap, sign=True)


def _sent(row: summary.Row) -> str:
    return "" if row.leaving_bytes is None else size(row.leaving_bytes)


def _links(name: str, result: Result) -> Iterator[str]:
    chosen = [record for record in result.records if _is(name, record)]
    if not chosen:
        return
    plain = {(r["model"], r["workers"], r["bits"]): r for r in result.records if r["method"] == DDP}
    yield from (f"### Step time: {chosen[0]['model']}, {chosen[0]['workers']} hosts", "")
    yield from (
        "| | link | ÷ step without communication | plain DDP | speed-up over plain DDP |",
        "|---|---|--:|--:|--:|",
    )
    for record in sorted(chosen, key=lambda r: (label_of(r), r["bits"])):
        base = plain.get((record["model"], record["workers"], record["bits"]))
        beside = "" if base is None else number(base["over_reference"])
        gain = "" if base is None else f"{number(1 / over_plain(record, base))} ×"
        yield f"| `{label_of(record)}` | {link(record)} | {number(record['over_reference'])} | {beside} | {gain} |"


def _kernels(name: str, result: Result) -> Iterator[str]:
    chosen = [r for r in result.records if _is(name, r) and r["backend"] == "native"]
    if not chosen:
        return
    threads = max(r["threads"] for r in chosen)
    yield from ("### Kernels", "")
    yield f"Compiled kernels on {threads} threads; times as multiples of a copy of the same tensor."
    yield from ("", "| | elements | bits | compress + residual | decode + add |", "|---|--:|--:|--:|--:|")
    for r in chosen:
        if r["threads"] == threads and r["numel"] >= 1_000_000:
            yield (
                f"| `{label_of(r)}` | {r['numel']:,} | {number(r['bits'])} | {number(r['compress_copies'])} | "
                f"{number(r['decode_copies'])} |"
            )
