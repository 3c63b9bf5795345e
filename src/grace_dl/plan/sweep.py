"""Predictions over numbers of workers and link rates, and the advice that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..formatting import rate
from .cluster import Cluster
from .confidence import LARGE_ERROR, TYPICAL_ERROR
from .predict import DDP, Planned, Planner, Prediction

WORKERS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 10_000)
RATES = (1e8, 1e9, 1e10, 2.5e10, 1e11, 4e11)


@dataclass(frozen=True)
class Row:
    """A prediction beside plain DDP on the same cluster."""

    prediction: Prediction
    plain: Prediction
    break_even: float | None = None

    @property
    def speedup(self) -> float:
        return self.plain.seconds / self.prediction.seconds


@dataclass(frozen=True)
class Sweep:
    """All predictions of one plan."""

    cluster: Cluster
    rows: list[Row]
    """Every method on the given cluster, plain DDP first."""
    over_workers: dict[int, list[Row]]
    over_rates: dict[float, list[Row]]
    best: dict[tuple[int, float], Row]
    """The fastest way for each number of workers and link rate."""

    @property
    def ranked(self) -> list[Row]:
        return sorted(self.rows, key=lambda row: row.prediction.seconds)


def sweep(
    planner: Planner,
    methods: Sequence[Planned],
    cluster: Cluster,
    workers: Sequence[int] = WORKERS,
    rates: Sequence[float] = RATES,
) -> Sweep:
    """Predict every method on the cluster, and on clusters of other sizes and rates."""

    def rows(there: Cluster, break_even: bool = False) -> list[Row]:
        plain = planner.predict(None, there)
        found = [Row(plain, plain)]
        for method in methods:
            rate = planner.break_even(method, there) if break_even else None
            found.append(Row(planner.predict(method, there), plain, rate))
        return found

    grid = {(w, r): rows(cluster.resized(w).at_rate(r)) for w in workers for r in rates}
    return Sweep(
        cluster,
        rows(cluster, break_even=True),
        {w: rows(cluster.resized(w)) for w in workers},
        {r: rows(cluster.at_rate(r)) for r in rates},
        {place: min(found, key=lambda row: row.prediction.seconds) for place, found in grid.items()},
    )


def verdict(found: Sweep) -> str:
    """What to use on the cluster, and how sure the model is; local steps are named after the best method, since they train otherwise."""
    every_step = [row for row in found.ranked if row.prediction.every == 1]
    said = _verdict(found, every_step)
    local = next((row for row in found.ranked if row.prediction.every > 1), None)
    if local is None or local.prediction.seconds >= every_step[0].prediction.seconds:
        return said
    return (
        f"{said} Local steps would be faster: {local.prediction.method} is predicted to be {local.speedup:.2f} × faster than plain DDP, but "
        "its training differs; compare the losses (docs/slow_links.md)."
    )


def _verdict(found: Sweep, ranked: Sequence[Row]) -> str:
    best = ranked[0]
    runner = next((row for row in ranked if row.prediction.method != DDP), best)
    error = f"Predicted step times are typically off by {TYPICAL_ERROR:.0%}, one in ten by more than {LARGE_ERROR:.0%}"
    if best.prediction.method == DDP:
        slower = f" The best, {runner.prediction.method}, would take {1 / runner.speedup:.2f} × as long." * (
            runner is not best
        )
        return f"Use plain DDP on {found.cluster}: no method is predicted to be faster.{slower} {error}."
    name, limit = best.prediction.method, best.break_even
    below = f", and to pay below {rate(limit)}" if limit and limit < 1e12 else ""
    edge = f"predicted to be {best.speedup:.2f} × faster than plain DDP on {found.cluster}{below}"
    if best.speedup > 1 + LARGE_ERROR:
        return f"Use {name}: {edge}. {error}; the gain is larger."
    if best.speedup > 1 + TYPICAL_ERROR:
        return f"{name} will probably pay: {edge}. {error}."
    return f"Too close to call: {name} is {edge}. {error}; measure both."
