"""Summaries of accuracy records for the terminal and reports: means over seeds, time to a target, speed-ups."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .results import label_of
from .selection import DDP
from .target import LOSS, Target

BF16 = "bf16"
"""The method that others are compared with besides plain DDP."""

Record = dict[str, Any]
Group = tuple[str, int, int]
"""Task, epochs and workers: what must agree for records to be compared."""


@dataclass(frozen=True)
class Row:
    """One method at one link rate, over its seeds."""

    label: str
    runs: int
    failed: list[str]
    accuracy: float | None
    spread: float | None
    """Standard deviation over seeds; None with one."""
    gap: float | None
    """Final accuracy minus that of DDP."""
    loss: float | None
    loss_spread: float | None
    loss_over_ddp: float | None
    """Final loss relative to that of DDP."""
    reached: int
    """Runs that reached the target."""
    seconds_to_target: float | None
    """Mean over the runs, if all of them reached it."""
    speedup: float | None
    """Time to the target of DDP ÷ that of this method."""
    speedup_over_bf16: float | None
    seconds: float | None
    """Training time, mean over runs; None where it was not measured alone."""
    leaving_bytes: float | None

    @property
    def loses(self) -> bool:
        """Whether DDP is better: it reaches the target sooner, or is the only one to reach it."""
        if self.failed or (self.speedup is not None and self.speedup < 1):
            return True
        return self.reached < self.runs


def group_of(record: Record) -> Group:
    """The group of a record, within which records are comparable."""
    return record["task"], record["epochs"], record["workers"]


def groups(records: Iterable[Record]) -> dict[Group, list[Record]]:
    """Records by task, epochs and workers, in the order they come."""
    found: dict[Group, list[Record]] = {}
    for record in records:
        found.setdefault(group_of(record), []).append(record)
    return found


def rates(records: Iterable[Record]) -> list[str]:
    """The link rates of records, slowest first."""
    bits = {r["rate"]: r["bits"] for r in records}
    return sorted(bits, key=lambda rate: (bits[rate], rate))


def final_loss(record: Record) -> float | None:
    """The loss of the last evaluation; None for a run that failed, or a file from before losses were recorded."""
    return None if record["failed"] or not record["curve"] else record["curve"][-1].get("loss")


def seconds_to(record: Record, target: Target) -> float | None:
    """Training time until an evaluation first reaches the target; None if none does.

    >>> seconds_to({"curve": [{"seconds": 2.0, "accuracy": 0.5}, {"seconds": 4.0, "accuracy": 0.8}]}, Target(0.7))
    4.0
    """
    return next((float(p["seconds"]) for p in record["curve"] if target.is_reached(p)), None)


def rows(records: Sequence[Record], rate: str, target: Target | None) -> list[Row]:
    """A row for each method of one group at one rate; the first to reach the target first, then the best."""
    chosen: dict[str, list[Record]] = {}
    for record in records:
        if record["rate"] == rate:
            chosen.setdefault(label_of(record), []).append(record)
    times = {label: _time(runs, target) for label, runs in chosen.items()}
    # Training is identical on any link, so a baseline's accuracy may come from all of them.
    baseline = [r for r in chosen.get(DDP, records) if r["method"] == DDP]
    plain, plain_loss = _mean(r["accuracy"] for r in baseline), _mean(map(final_loss, baseline))
    found = []
    for label, runs in chosen.items():
        ends = [r["accuracy"] for r in runs if r["accuracy"] is not None]
        accuracy = _mean(ends)
        losses = [value for value in map(final_loss, runs) if value is not None]
        loss = _mean(losses)
        timed = [r for r in runs if r["timed"]]
        found.append(
            Row(
                label=label,
                runs=len(runs),
                failed=[r["failed"] for r in runs if r["failed"]],
                accuracy=accuracy,
                spread=_spread(ends),
                gap=None if accuracy is None or plain is None else accuracy - plain,
                loss=loss,
                loss_spread=_spread(losses),
                loss_over_ddp=_ratio(loss, plain_loss),
                reached=0 if target is None else sum(seconds_to(r, target) is not None for r in runs),
                seconds_to_target=times[label],
                speedup=_ratio(times.get(DDP), times[label]),
                speedup_over_bf16=_ratio(times.get(BF16), times[label]),
                seconds=_mean(r["seconds"] for r in timed if not r["failed"]),
                leaving_bytes=_mean(r["leaving_bytes"] for r in runs if not r["failed"]),
            )
        )
    late = float("inf")
    by_loss = target is not None and target.field == LOSS

    def order(row: Row) -> tuple[float, float]:
        end = (late if row.loss is None else row.loss) if by_loss else -(row.accuracy or 0.0)
        return late if row.seconds_to_target is None else row.seconds_to_target, end

    return sorted(found, key=order)


def _spread(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _time(runs: Sequence[Record], target: Target | None) -> float | None:
    if target is None or not all(r["timed"] for r in runs):
        return None
    times = [seconds_to(r, target) for r in runs]
    return None if None in times else _mean(times)


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [v for v in values if v is not None]
    return statistics.fmean(numbers) if numbers else None


def _ratio(baseline: float | None, own: float | None) -> float | None:
    return baseline / own if baseline is not None and own else None
