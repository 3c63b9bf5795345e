"""The picture of the README: step times of some methods over links of four rates, from `link-transformer.json`.

python benchmarks/picture.py
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

FOLDER = Path(__file__).parent
OUT = FOLDER.parent / "docs" / "images" / "links.svg"
SHOWN = {
    "ddp": ("plain DDP", "black"),
    "ddp-fp16": ("DDP's fp16 hook", "0.55"),
    "int8": ("int8", "tab:purple"),
    "int4": ("int4", "tab:red"),
    "powersgd:4": ("powersgd, rank 4", "tab:green"),
    "acpsgd:4": ("acpsgd, rank 4", "tab:blue"),
    "topk:0.001": ("topk, 0.1 %", "tab:orange"),
}


def main() -> None:
    content = json.loads((FOLDER / "link-transformer.json").read_text())
    records = [r for r in content["records"] if r["workers"] == 2 and r.get("through", "ddp") == "ddp"]
    rates = {r["bits"]: r["rate"] for r in sorted(records, key=lambda r: r["bits"])}
    pyplot.rcParams.update({"svg.hashsalt": "grace", "font.size": 11, "svg.fonttype": "none"})
    figure, axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
    for method, (label, colour) in SHOWN.items():
        times = {r["bits"]: r["over_reference"] for r in records if r["method"] == method}
        places = [place for place, bits in enumerate(rates) if bits in times]
        axes.plot(
            places,
            [times[bits] for bits in rates if bits in times],
            marker="o",
            label=label,
            color=colour,
            linewidth=2.5 if method == "ddp" else 1.8,
        )
    axes.set_xticks(range(len(rates)), [_words(rate) for rate in rates.values()])
    axes.set_yscale("log")
    axes.set_yticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.set_ylabel("step time ÷ step without communication")
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    OUT.parent.mkdir(exist_ok=True)
    figure.savefig(OUT, metadata={"Date": None})


def _words(rate: str) -> str:
    return rate.replace("mbit", " Mbit/s").replace("gbit", " Gbit/s")


if __name__ == "__main__":
    main()
