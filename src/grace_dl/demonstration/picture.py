"""The demo's pictures: an HTML page without dependencies, and a PNG where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..bench.plots import pyplot
from ..bench.selection import DDP
from ..formatting import duration, escape, milliseconds, number, percent, size
from ..report import charts
from ..report.page import Section, figure, page
from ..report.tables import Cell, table
from .plan import Result
from .summary import networks, plain_of, title_of, verdict


def html(results: Sequence[Result], title: str, notes: str) -> str:
    """A page with the verdict, and a chart, bars and a table for each network."""
    sections = []
    for place, (network, own) in enumerate(networks(results).items(), 1):
        name = title_of(network)
        body = _curves(own, name) + _bars(own, name) + _table(own)
        sections.append(Section(f"n{place}", f"Training on {name}", title, body))
    said = Section("notes", "How this was measured", "", f"<p>{escape(notes)}</p>", list(verdict(results)))
    return page([*sections, said], "Training with and without compression")


def _curves(own: Sequence[Result], name: str) -> str:
    kinds = charts.styles([r.method for r in own], DDP, "")
    series = [
        charts.Series(
            r.method,
            kinds[r.method],
            [
                charts.Point(
                    p.seconds,
                    100 * p.accuracy,
                    f"{r.method}: {percent(p.accuracy)} % after {duration(p.seconds)}",
                )
                for p in r.points
            ],
        )
        for r in own
        if r.points
    ]
    across, up = charts.Axis("seconds of training", log=True), charts.Axis("test accuracy", unit=" %")
    return (
        figure(f"Accuracy against time on {name}", charts.lines(name, series, across, up)) if series else ""
    )


def _bars(own: Sequence[Result], name: str) -> str:
    plain = plain_of(own)
    rows = []
    for r in sorted(own, key=lambda r: r.seconds):
        gain = 1.0 if plain is None else plain.seconds / r.seconds
        kind = "plain" if r is plain else "lost" if gain < 1 else "backward"
        note = (
            duration(r.seconds) if r is plain or plain is None else f"{duration(r.seconds)}, {_words(gain)}"
        )
        rows.append(charts.Bar(r.method, [(kind, r.seconds, duration(r.seconds))], note, "bad" * (gain < 1)))
    drawn = charts.bars(f"Training time on {name}", rows, "seconds of training", whole=True)
    return figure("Time of the whole training", drawn)


def _words(gain: float) -> str:
    return f"{number(gain)} × faster" if gain >= 1 else f"▼ {number(1 / gain)} × slower"


def _table(own: Sequence[Result]) -> str:
    rows: list[list[Cell | str]] = [
        [
            r.method,
            Cell(f"{percent(r.accuracy)} %", r.accuracy),
            Cell(size(r.sent_per_step), r.sent_per_step),
            Cell(f"{number(r.ratio)} ×", r.ratio),
            Cell(milliseconds(r.step_seconds), r.step_seconds),
            Cell(duration(r.seconds), r.seconds),
            Cell(str(r.timed), r.timed),
        ]
        for r in own
    ]
    columns = ["method|", "accuracy", "sent per step", "fewer bytes", "step", "whole training", "steps timed"]
    return table(
        f"{own[0].steps} steps, {own[0].parameters:,} parameters; whole training: all steps at the median pace",
        columns,
        rows,
    )


def plot(results: Sequence[Result], title: str, path: Path) -> None:
    """A PNG with a panel for each network: accuracy against training time."""
    plt = pyplot()
    found = networks(results)
    size_ = (5.2 * len(found), 4.6)
    drawn, panels = plt.subplots(
        1, len(found), figsize=size_, sharey=True, squeeze=False, layout="constrained"
    )
    for panel, (network, own) in zip(panels[0], found.items()):
        for place, r in enumerate(own):
            plain = r.method == DDP
            panel.plot(
                [p.seconds for p in r.points],
                [100 * p.accuracy for p in r.points],
                color="black" if plain else f"C{place}",
                linestyle="--" if plain else "-",
                marker="o",
                markersize=3,
                label=r.method,
            )
        panel.set(xscale="log", xlabel="training time (s)", title=f"on {title_of(network)}")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("test accuracy (%)")
    panels[0][0].legend(fontsize=8)
    drawn.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=130)
    plt.close(drawn)
