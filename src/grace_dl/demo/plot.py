"""The demo's plot: accuracy by bytes sent, and by time."""

from __future__ import annotations

from pathlib import Path

from ..bench.selection import DDP
from ..errors import MissingExtraError
from .plan import Result


def plot(results: list[Result], title: str, path: Path) -> None:
    """Write a PNG with two panels that share the accuracy axis."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("plotting needs matplotlib: pip install 'grace-dl[demo]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_bytes, by_time) = pyplot.subplots(1, 2, figsize=(11, 4.6), sharey=True, layout="constrained")
    for place, result in enumerate(results):
        accuracy = [100 * p.accuracy for p in result.points]
        plain = result.method == DDP
        look = {
            "color": "black" if plain else f"C{place}",
            "linestyle": "--" if plain else "-",
            "marker": "o",
            "markersize": 3,
        }
        by_bytes.plot([p.megabytes for p in result.points], accuracy, label=result.method, **look)
        by_time.plot([p.seconds for p in result.points], accuracy, **look)
    by_bytes.set(xscale="log", xlabel="MB sent by each worker", ylabel="test accuracy (%)")
    by_time.set(xlabel="training time (s), loopback network")
    lowest = min(100 * r.points[len(r.points) // 3].accuracy for r in results)
    by_bytes.set_ylim(bottom=max(0.0, lowest - 5))
    for panel in (by_bytes, by_time):
        panel.grid(alpha=0.3)
    by_bytes.legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
