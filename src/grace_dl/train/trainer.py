"""`Trainer(config).run()`: a run on this rank, under any launcher."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from .config import TrainConfig
from .events import Message, Report, format_metrics, ignore
from .lock import locked
from .world import World, current, joined


@dataclass(frozen=True)
class TrainResult:
    """The result of a run. Metrics are over all ranks, the rest is this rank's."""

    metrics: dict[str, float]
    """The last evaluation by name, such as `acc/test_top1`."""
    best: float | None
    """The best value of `configs.train.metric` so far."""
    step: int
    seconds: float
    """Time spent in training steps, without evaluations and checkpoints."""
    sent_bytes: int
    """Bytes that this rank sent to others for its gradients."""
    folder: Path


class Trainer:
    """Runs a config on this rank.

    Ranks join through the launcher's environment variables (torchrun, mpirun, horovodrun; else a single process).
    An existing process group is used. Every rank must run the same config.
    """

    def __init__(
        self, config: TrainConfig, *, report: Report | None = None, world: World | None = None
    ) -> None:
        """`report` is called with the events of this rank; `world` overrides the environment."""
        self.config, self.world = config, world
        self.report = report or ignore

    def run(self) -> TrainResult:
        """Train to the end, from the newest checkpoint if there is one; or only evaluate, if the config says so."""
        from .loop import TrainingLoop

        config, world = self.config, self.world or current()
        folder = config.folder
        with joined(world, config.settings.device), self._lock(folder, world):
            loop = TrainingLoop(config.settings, world, folder, self.report)
            ranks = f"{world.size} rank{'s' if world.size > 1 else ''}"
            self.report(Message(f"{folder}: {ranks}, {loop.device}"))
            metrics = loop.evaluate_best() if config.evaluate_only else loop.run()
            self.report(Message(format_metrics(metrics)))
        sent = loop.sync.stats.leaving_bytes
        return TrainResult(metrics, loop.best, loop.step, loop.seconds, sent, folder)

    def _lock(self, folder: Path, world: World) -> AbstractContextManager[None]:
        return nullcontext() if self.config.evaluate_only else locked(folder, world)
