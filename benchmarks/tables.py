"""The tables of docs/benchmarks.md that show result files of this folder: those behind `<!-- table of FILE -->`.

python benchmarks/tables.py            writes them anew
python benchmarks/tables.py --check    fails if one differs from its file
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from grace_dl.bench import summary
from grace_dl.bench.results import label_of
from grace_dl.bench.target import Target
from grace_dl.formatting import link

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "benchmarks.md"
TABLE = re.compile(r"(<!-- table of (\S+) -->\n)((?:\|.*\n)*)")
BASELINES = {"ddp": "**plain DDP**", "ddp-fp16": "**DDP's fp16 hook**"}

Record = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    before = PAGE.read_text("utf-8")
    after = TABLE.sub(lambda found: found[1] + table(FOLDER / found[2]), before)
    if after == before:
        return 0
    if arguments == ["--check"]:
        print(
            f"{PAGE.name} shows other figures than its files; run: python benchmarks/tables.py",
            file=sys.stderr,
        )
        return 1
    PAGE.write_text(after, "utf-8")
    return 0


def table(path: Path) -> str:
    """The rows of a result file as Markdown."""
    content = json.loads(path.read_text("utf-8"))
    show: dict[str, Callable[[list[Record]], Iterator[Sequence[str]]]] = {
        "link": _links,
        "step": _steps,
        "accuracy": _accuracy,
    }
    head, *rows = show[content["benchmark"]](content["records"])
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _links(records: list[Record]) -> Iterator[Sequence[str]]:
    """Step time relative to the silent step; fastest at 1 Gbit/s first."""
    rates = {r["rate"]: link(r) for r in sorted(records, key=lambda r: r["bits"])}
    yield ["method", "MB sent", *rates.values()]
    by_method: dict[str, dict[str, Record]] = {}
    for r in records:
        by_method.setdefault(label_of(r), {})[r["rate"]] = r
    for method, row in sorted(by_method.items(), key=lambda item: item[1]["1gbit"]["over_reference"]):
        times = [f"{row[rate]['over_reference']:.2f}" if rate in row else "–" for rate in rates]
        yield [_name(method), _sent(method, row.values()), *times]


def _sent(method: str, records: Any) -> str:
    """What left a rank in a step. `auto` may choose differently at each rate; PyTorch does not tell."""
    sizes = sorted({round(r["leaving_bytes"] / 1e6, 2) for r in records})
    if method in BASELINES:
        return ""
    return f"{sizes[0]:.2f}" if method != "auto" or len(sizes) == 1 else f"{sizes[0]:.2f} to {sizes[-1]:.2f}"


def _steps(records: list[Record]) -> Iterator[Sequence[str]]:
    """Steps without computation, and their parts in milliseconds; fastest first."""
    parts = ("compress", "wait", "decode")
    yield ["", "ms", "÷ silent", "÷ DDP", *parts]
    for r in sorted(records, key=lambda r: r["over_reference"]):
        through = " (optimizer)" if r["through"] == "optimizer" else ""
        over_ddp = r.get("over_ddp", 1.0 if r["method"] == "ddp" else None)
        spent = ["" if r["method"] in BASELINES else f"{1e3 * r['parts'][part]:.0f}" for part in parts]
        ratios = [f"{r['over_reference']:.2f}", "" if over_ddp is None else f"{over_ddp:.2f}"]
        yield [_name(r["method"]) + through, f"{1e3 * r['seconds']:.0f}", *ratios, *spent]


def _accuracy(records: list[Record]) -> Iterator[Sequence[str]]:
    """Final loss, and training time to the default target at each rate with the speed-up over DDP; lowest loss first."""
    target = Target.default(records)
    rates = {rate: summary.rows(records, rate, target) for rate in reversed(summary.rates(records))}
    names = {r["rate"]: link(r) for r in records}
    yield ["", "runs", "loss", "− float32", "MB sent", *(f"s, {names[rate]}" for rate in rates)]
    for row in sorted(next(iter(rates.values())), key=lambda row: row.loss or 0.0):
        spread = "" if row.loss_spread is None else f" ± {row.loss_spread:.4f}"
        gap = (
            "" if row.label == "ddp" else f"{100 * ((row.loss_over_ddp or 0.0) - 1):+.1f} %".replace("-", "−")
        )
        sent = f"{(row.leaving_bytes or 0.0) / 1e6:,.0f}"
        cells = [_time(row.label, next(r for r in rows if r.label == row.label)) for rows in rates.values()]
        yield [_name(row.label), str(row.runs), f"{row.loss:.4f}{spread}", gap, sent, *cells]


def _time(label: str, row: summary.Row) -> str:
    if row.seconds_to_target is None:
        return f"– ({row.seconds:,.0f} in all)" if row.seconds is not None else "–"
    gain = "" if label == "ddp" else f" ({row.speedup:.1f} ×)"
    return f"{row.seconds_to_target:,.0f}{gain}"


def _name(method: str) -> str:
    return BASELINES.get(method, f"`{method}`")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
