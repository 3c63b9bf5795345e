"""Plots of results as PNG files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import MissingExtraError
from .results import Results, label_of
from .selection import DDP
from .tables import heading


def pyplot() -> Any:
    """matplotlib's `pyplot`, set up to write files."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("plots need matplotlib: pip install 'grace-dl[demo]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def show(console: Console, out: Path, plot: Callable[..., None], results: Results) -> None:
    """Plot next to a result file, if matplotlib is installed: the results are complete without it."""
    picture = out.with_suffix(".png")
    try:
        plot(results.header, list(results.records.values()), picture)
    except MissingExtraError as error:
        console.print(f"No plot: {error}", soft_wrap=True, markup=False)
    else:
        console.print(f"Plot: {picture.resolve()}", soft_wrap=True)


def plot_kernels(header: dict[str, Any], records: Sequence[dict[str, Any]], path: Path) -> None:
    """Cost of every method at the largest size, reference beside native kernels."""
    plt = pyplot()
    numel = max(r["numel"] for r in records)
    threads = max(r["threads"] for r in records)
    chosen = [r for r in records if r["numel"] == numel and r["threads"] == threads]
    methods = list(dict.fromkeys(r["method"] for r in chosen))
    figure, axes = plt.subplots(figsize=(8, 0.32 * len(methods) + 1.6), layout="constrained")
    for offset, (backend, colour) in enumerate((("reference", "0.75"), ("native", "tab:blue"))):
        values = {
            r["method"]: r["compress_copies"] + r["decode_copies"] for r in chosen if r["backend"] == backend
        }
        if not values:
            continue
        places = [i + 0.4 * offset - 0.2 for i, method in enumerate(methods) if method in values]
        axes.barh(
            places,
            [values[method] for method in methods if method in values],
            0.4,
            label=backend,
            color=colour,
        )
    axes.set_yticks(range(len(methods)), methods)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(f"compress with error feedback + decode one peer, in copies of {numel:,} float32")
    axes.set_title(f"{heading(header)}; {threads} threads", fontsize=8, loc="left")
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def plot_links(header: dict[str, Any], records: Sequence[dict[str, Any]], path: Path) -> None:
    """Step time relative to a step without communication against link rate; one panel for each number of hosts."""
    plt = pyplot()
    worlds = sorted({(r["model"], r["workers"]) for r in records})
    rates = sorted({r["bits"] for r in records})
    names = {r["bits"]: r["rate"] for r in records}
    figure, panels = plt.subplots(
        1, len(worlds), figsize=(6.5 * len(worlds), 5), squeeze=False, layout="constrained"
    )
    for panel, (model, world) in zip(panels[0], worlds):
        for label in dict.fromkeys(label_of(r) for r in records):
            found = {
                r["bits"]: r["over_reference"]
                for r in records
                if label_of(r) == label and (r["model"], r["workers"]) == (model, world)
            }
            places = [i for i, bits in enumerate(rates) if bits in found]
            style = {"color": "black", "linewidth": 2} if label == DDP else {"linewidth": 1}
            panel.plot(
                places, [found[rates[i]] for i in places], marker="o", markersize=3, label=label, **style
            )
        panel.set_xticks(range(len(rates)), [names[bits] for bits in rates])
        panel.set_yscale("log")
        panel.set_xlabel("link")
        panel.set_ylabel("step time ÷ silent step")
        panel.set_title(f"{model}, {world} hosts")
    panels[0][-1].legend(fontsize=7)
    figure.suptitle(heading(header), fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)
