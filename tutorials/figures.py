"""Draws the figures of this section: python figures.py"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

FOLDER = Path(__file__).parent / "figures"
WORKERS = ["#2f6f8f", "#c8553d", "#588b3a", "#8a5a9c"]
GREY = "#e4e4e0"


def canvas(width: float, height: float) -> Axes:
    figure, axes = plt.subplots(figsize=(width, height))
    axes.set_aspect("equal")
    axes.axis("off")
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.99)
    return axes


def save(axes: Axes, name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    # Without a date and with fixed ids, so that drawing again changes nothing.
    plt.rcParams["svg.hashsalt"] = "grace"
    figure = axes.figure
    assert isinstance(figure, Figure)
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def grid(axes: Axes, x: float, y: float, colours: list[list[str]], cell: float = 0.5) -> None:
    for row, line in enumerate(colours):
        for column, colour in enumerate(line):
            corner = (x + column * cell, y - row * cell)
            axes.add_patch(Rectangle(corner, cell * 0.92, -cell * 0.92, facecolor=colour, edgecolor="white"))


def split(
    name: str, what: str, data_parallel: list[list[list[str]]], model_parallel: list[list[list[str]]]
) -> None:
    """Two rows of workers: what each has under data parallelism and under model parallelism."""
    axes = canvas(9.0, 4.4)
    for row, (title, workers) in enumerate(
        (("data parallelism", data_parallel), ("model parallelism", model_parallel))
    ):
        top = 5.0 - 2.9 * row
        axes.text(-0.2, top - 0.95, f"{title}:\n{what} of each worker", ha="right", va="center", fontsize=11)
        for worker, colours in enumerate(workers):
            grid(axes, 0.2 + 2.6 * worker, top, colours)
            axes.text(
                1.15 + 2.6 * worker,
                top - 2.25,
                f"worker {worker}",
                ha="center",
                color=WORKERS[worker],
                fontsize=11,
            )
    axes.set_xlim(-4.4, 10.6)
    axes.set_ylim(-0.5, 5.3)
    save(axes, name)


def weights() -> None:
    """All weights on all workers, or a quarter on each."""
    whole = [[["#4d4d4d"] * 4 for _ in range(4)] for _ in range(4)]
    parts = [[[WORKERS[w] if row == w else GREY] * 4 for row in range(4)] for w in range(4)]
    split("weights", "weights", whole, parts)


def data() -> None:
    """A quarter of the data on each worker, or all of it on all."""
    parts = [[[WORKERS[w] if row == w else GREY] * 4 for row in range(4)] for w in range(4)]
    whole = [[["#4d4d4d"] * 4 for _ in range(4)] for _ in range(4)]
    split("data", "examples", parts, whole)


def ring() -> None:
    """The two rounds of a ring all-reduce over four workers, whose tensors are cut in four."""
    axes = canvas(10.0, 5.2)
    places = [(0.0, 2.0), (4.2, 2.0), (4.2, -1.4), (0.0, -1.4)]
    for half, (left, title) in enumerate(((0.0, "first round: add"), (8.6, "second round: pass on"))):
        axes.text(left + 3.1, 3.9, title, ha="center", fontsize=12)
        for worker, (x, y) in enumerate(places):
            done = (worker + 1) % 4
            for part in range(4):
                full = part == done
                if half == 0:
                    colour = WORKERS[worker] if not full else "#4d4d4d"
                    strength = 1.0 if full else 0.35
                else:
                    colour, strength = "#4d4d4d", 1.0
                axes.add_patch(
                    Rectangle(
                        (left + x + 0.5 * part, y),
                        0.46,
                        0.9,
                        facecolor=colour,
                        alpha=strength,
                        edgecolor="white",
                    )
                )
            axes.text(
                left + x + 1.0, y + 1.1, f"worker {worker}", ha="center", color=WORKERS[worker], fontsize=10
            )
        for start, end, bend in (
            ((2.15, 2.45), (4.05, 2.45), 0),
            ((5.2, 1.85), (5.2, 0.2), 0),
            ((4.05, -0.95), (2.15, -0.95), 0),
            ((1.0, 0.2), (1.0, 1.85), 0),
        ):
            arrow = FancyArrowPatch(
                (left + start[0], start[1]),
                (left + end[0], end[1]),
                arrowstyle="-|>",
                mutation_scale=14,
                connectionstyle=f"arc3,rad={bend}",
                color="#777777",
            )
            axes.add_patch(arrow)
        text = (
            "3 steps: each quarter goes round and\nis summed; every worker ends with one",
            "3 steps: the finished quarters\ngo round once more",
        )
        axes.text(left + 3.1, -2.6, text[half], ha="center", va="center", fontsize=10)
    axes.set_xlim(-0.4, 15.2)
    axes.set_ylim(-3.4, 4.3)
    save(axes, "ring")


if __name__ == "__main__":
    weights()
    data()
    ring()
    print(f"drawn into {FOLDER}")
