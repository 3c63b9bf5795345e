"""What the demo runs, and what it records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LEARNING_RATE = 0.05
MOMENTUM = 0.9


@dataclass(frozen=True)
class Run:
    """One training: a method's parameters, and the optimizer's momentum (none where the method brings its own) and rate."""

    label: str
    params: dict[str, Any] | None
    """For `grace_from_params`; None is DistributedDataParallel as it comes."""
    momentum: float = MOMENTUM
    rate: float = LEARNING_RATE


@dataclass
class Point:
    """One look at the model during training."""

    step: int
    seconds: float
    """Training time so far, looks at the model not counted."""
    megabytes: float
    """What one worker has sent so far."""
    accuracy: float


@dataclass
class Result:
    """What one training gave, as rank 0 saw it."""

    label: str
    params: dict[str, Any] | None
    steps: int
    parameters: int
    accuracy: float
    sent_per_step: float
    """Bytes leaving one worker each step."""
    payload_per_step: float
    """Bytes one worker hands to collectives each step."""
    dense_per_step: float
    """Bytes of the gradients."""
    step_ms: float
    """Median over the steps."""
    seconds: float
    points: list[Point] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """How many times smaller the payload is than the gradients."""
        return self.dense_per_step / self.payload_per_step


RUNS: tuple[Run, ...] = (
    Run("uncompressed", None),
    Run("fp16", {"compressor": "fp16"}),
    Run("int4", {"compressor": "int4"}),
    Run("efsignsgd", {"compressor": "efsignsgd"}),
    # Its result is ±1 by vote, so its rate is the size of every weight's step.
    Run("signum", {"compressor": "signum"}, momentum=0.0, rate=0.0005),
    Run("powersgd rank 4", {"compressor": "powersgd", "rank": 4}),
    Run("topk 1 %", {"compressor": "topk", "compress_ratio": 0.01}),
    Run("dgc 0.5 %", {"compressor": "dgc", "compress_ratio": 0.005}, momentum=0.0),
)
"""The demo's programme: the plain baseline first, then about one method of each family, ever smaller on the wire.

All train with the same rate and momentum, whether these suit them or not. `signum` and `dgc` bring their own momentum, and
`signum` needs a rate of its own; that one is a first guess, like all else here not searched for.
"""


@dataclass(frozen=True)
class Settings:
    """What all runs of a demo share."""

    data: str = "fashion-mnist"
    epochs: float = 1.0
    batch: int = 64
    """Images per worker and step."""
    workers: int = 2
    looks: int = 10
    """How often the model is tried on the test set during a run."""
