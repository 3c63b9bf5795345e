"""What a run must reach: an accuracy, or a loss where the task is judged by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from ..formatting import percent
from .selection import DDP

ACCURACY, LOSS = "accuracy", "loss"
"""Fields of an evaluation that a target may be for."""

MARGIN = 0.01
"""The default target is one percentage point of accuracy below the worst DDP run, or one percent above its loss."""


@dataclass(frozen=True)
class Target:
    """A value of an evaluation's field.

    >>> print(Target(0.65), Target(1.9, LOSS), sep=", ")
    65.00 %, a loss of 1.9000
    """

    value: float
    """Accuracies are fractions of 1."""
    field: str = ACCURACY

    @classmethod
    def asked(cls, value: float, field: str) -> Target:
        """The target that `--target` names: an accuracy in percent, or a loss."""
        if field == LOSS:
            return cls(value, LOSS)
        if value > 100:
            raise ConfigError(f"--target {value:g} must be a percentage of correct answers, such as 65.")
        return cls(value / 100)

    @classmethod
    def default(cls, records: Iterable[Mapping[str, Any]]) -> Target | None:
        """Within the margin of the worst DDP run at its end; None without such runs."""
        plain = [r for r in records if r["method"] == DDP]
        field = field_of(plain[0]) if plain else ACCURACY
        ends = [r[field] for r in plain if r.get(field) is not None]
        if not ends:
            return None
        return cls((1 + MARGIN) * max(ends), LOSS) if field == LOSS else cls(min(ends) - MARGIN)

    def is_reached(self, evaluation: Mapping[str, float]) -> bool:
        """Whether an evaluation of a run is at least as good.

        >>> Target(0.5).is_reached({"accuracy": 0.6}), Target(1.5, LOSS).is_reached({"loss": 1.6})
        (True, False)
        """
        value = evaluation.get(self.field)
        if value is None:
            return False
        return value <= self.value if self.field == LOSS else value >= self.value

    def __str__(self) -> str:
        return shown(self.value, self.field)


def field_of(record: Mapping[str, Any]) -> str:
    """What the runs of a record are judged by; result files from before targets of loss do not say it."""
    return str(record.get("judged_by", ACCURACY))


def shown(value: float, field: str) -> str:
    """
    >>> shown(0.7, ACCURACY), shown(1.25, LOSS)
    ('70.00 %', 'a loss of 1.2500')
    """
    return f"a loss of {value:.4f}" if field == LOSS else f"{percent(value)} %"
