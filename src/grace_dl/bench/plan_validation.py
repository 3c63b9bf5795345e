"""Checks the cost model on GRACE's released measurements: fitted on 1, 2 and 4 workers, it predicts 8.

The data are those of the original paper (repository sands-lab/grace-data): throughput of seven models under TensorFlow and
Horovod on machines with one V100 each, joined at 10 Gbit/s. Codecs there are not ours and batch sizes are not recorded, so
the check is of the model's form. For each network and method, with x = 2(W−1)/W for all-reduce and x = W−1 for all-gather,

    seconds per sample = a + b·x

where a holds computing and encoding, b sending and decoding. a and b are fitted on 2 and 4 workers (1 too, without compression).
Settings that were measured on 8 workers only take a and b of the same method's other setting, b changed by the
difference of payload bytes times the cost of a byte, which is fitted on the runs without compression.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError
from ..plan.codecs import non_negative

FIT, PREDICT = (1, 2, 4), 8
COLUMNS = (
    "model",
    "method",
    "ratio",
    "memory",
    "workers",
    "backend",
    "comm_method",
    "mode",
    "throughput",
    "bytes_per_step",
)
RESNET50_BYTES = 4 * 25_557_032.0
"""Gradients of ResNet-50, whose volume without compression the data do not give."""


class Case(NamedTuple):
    """A method with its settings on a model."""

    model: str
    method: str
    ratio: str
    memory: str
    exchange: str

    @property
    def label(self) -> str:
        ratio = "" if self.ratio == "n/a" else f":{self.ratio}"
        return f"{self.method}{ratio}{' without memory' if self.memory == 'false' else ''}"


class Line(NamedTuple):
    """Seconds per sample: intercept and slope."""

    a: float
    b: float


@dataclass(frozen=True)
class Check:
    """A prediction for 8 workers beside the measurement, in seconds per sample."""

    case: Case
    predicted: float
    measured: float
    fitted: bool
    """Whether this very setting was fitted on fewer workers; otherwise it is predicted from bytes."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def exchange_factor(exchange: str, workers: int) -> float:
    """Payloads that leave a rank."""
    return 2 * (workers - 1) / workers if exchange == "allreduce" else workers - 1


class Measurements:
    """The content of the data file: seconds per sample by workers, and payload bytes relative to the gradients."""

    def __init__(self, path: Path) -> None:
        self.seconds: dict[Case, dict[int, float]] = {}
        volumes: dict[Case, float] = {}
        for row in _rows(path):
            if row["backend"] != "mpi":
                continue
            case = Case(*(row[column] for column in ("model", "method", "ratio", "memory", "comm_method")))
            if row["mode"] == "throughput":
                workers = int(row["workers"])
                self.seconds.setdefault(case, {})[workers] = workers / float(row["throughput"])
            elif row["mode"] == "data-volume" and row["bytes_per_step"]:
                volumes[case] = float(row["bytes_per_step"])
        dense = {case.model: volume for case, volume in volumes.items() if case.method == "none"}
        dense.setdefault("resnet50", RESNET50_BYTES)
        self._shares = {case: v / dense[case.model] for case, v in volumes.items() if case.model in dense}

    @property
    def models(self) -> list[str]:
        return sorted({case.model for case in self.seconds})

    def share(self, case: Case) -> float:
        """Payload relative to the gradients: of this model if it was recorded, else the median over models."""
        for known, share in self._shares.items():
            if known[:3] == case[:3]:
                return share
        alike = [share for known, share in self._shares.items() if known[1:3] == case[1:3]]
        if not alike:
            raise ConfigError(f"the data give no volume of {case.label} for any model.")
        return statistics.median(alike)

    def fit(self, case: Case) -> Line | None:
        """The line of a setting, if it was measured on enough workers."""
        points = [(w, s) for w, s in self.seconds.get(case, {}).items() if w in FIT]
        if len(points) < 2:
            return None
        rows = [[1 / s, exchange_factor(case.exchange, w) / s] for w, s in points]
        return Line(*non_negative(rows, [1.0] * len(rows)))

    def check(self, model: str) -> list[Check]:
        """Predictions for every setting of a model that was measured on 8 workers."""
        mine = {case: seconds for case, seconds in self.seconds.items() if case.model == model}
        plain = self.fit(next(case for case in mine if case.method == "none"))
        if plain is None:
            raise ConfigError(f"the data have no runs of {model} without compression on 2 and 4 workers.")
        checks = []
        for case, seconds in mine.items():
            if PREDICT not in seconds:
                continue
            own = self.fit(case)
            line = own or self._borrowed(case, mine, plain.b)
            if line is not None:
                predicted = line.a + line.b * exchange_factor(case.exchange, PREDICT)
                checks.append(Check(case, predicted, seconds[PREDICT], own is not None))
        return checks

    def _borrowed(self, case: Case, mine: Iterable[Case], per_gradient: float) -> Line | None:
        for other in mine:
            if (other.method, other.exchange) == (case.method, case.exchange):
                line = self.fit(other)
                if line is not None:
                    more = (self.share(case) - self.share(other)) * per_gradient
                    return Line(line.a, max(0.0, line.b + more))
        return None


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the measurements {path} cannot be read: {error}.") from error
    missing = [column for column in COLUMNS if not rows or column not in rows[0]]
    if missing:
        raise ConfigError(
            f"{path} has no column {', '.join(missing)}; export GRACE's released measurements as CSV, see docs/planning.md."
        )
    return rows


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation, for values without ties.

    >>> spearman([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.5
    """
    count = len(first)
    if count < 2:
        return math.nan

    def ranks(values: Sequence[float]) -> list[int]:
        order = sorted(range(count), key=lambda place: values[place])
        found = [0] * count
        for rank, place in enumerate(order):
            found[place] = rank
        return found

    apart = sum((a - b) ** 2 for a, b in zip(ranks(first), ranks(second)))
    return 1 - 6 * apart / (count * (count**2 - 1))


@dataclass(frozen=True)
class Summary:
    """Errors of a group of predictions."""

    count: int
    median: float
    largest_of_nine_in_ten: float
    worst: Check

    @classmethod
    def of(cls, checks: Sequence[Check]) -> Summary:
        errors = sorted(abs(check.error) for check in checks)
        tenth = errors[min(len(errors) - 1, math.ceil(0.9 * len(errors)) - 1)]
        worst = max(checks, key=lambda check: abs(check.error))
        return cls(len(errors), statistics.median(errors), tenth, worst)


def rank_correlation(checks: Sequence[Check]) -> float:
    """Whether methods are ranked by speed as measured."""
    return spearman([check.predicted for check in checks], [check.measured for check in checks])
