"""Local steps in a run: ranks train alone and exchange the change of their parameters now and then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..algebra.base import Method
from ..algebra.local_rule import LocalRule
from ..algebra.named import build
from ..compat.dgc.compression import DGCCompressor
from ..compat.dgc.optimizer import check_pair
from ..errors import ConfigError
from ..integrations.local_steps import LocalSteps
from .gradients import GradientSync, compression_of, seeded
from .schema import TrainSettings
from .synchronization import Synchronization
from .world import World


def rule_of(train: TrainSettings, method: Method | None = None) -> LocalRule | None:
    """The rule that `configs.train.local` describes, with the method of `configs.train.compression` or a given one."""
    if train.local is None:
        return None
    compression = compression_of(train.compression)
    if train.dgc or isinstance(compression, DGCCompressor):
        raise ConfigError(
            "configs.train.local and configs.train.dgc exclude each other: DGC's momentum belongs to gradients, local steps exchange "
            "parameters. Leave one of the config files out; topk:0.01 is a sparse method for local steps."
        )
    try:
        return LocalRule(method or compression or build("none"), **dict(train.local.items()))
    except ConfigError as error:
        raise ConfigError(f"configs.train.local: {error}") from None


class LocalSync(Synchronization):
    """Lets ranks train alone, and exchanges the change of their parameters as `rule` says."""

    local = True

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, rule: LocalRule) -> None:
        super().__init__(model)
        check_pair(optimizer, rule.method)
        self._steps = self._handle = LocalSteps.from_rule(model, optimizer, rule)

    def stepped(self) -> None:
        self._steps.step()

    def finish(self) -> None:
        self._steps.synchronize()

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        with self._steps.at_anchor():
            yield

    def common_state(self, optimizer: torch.optim.Optimizer) -> Any:
        return self._steps.common_state

    def scalars(self) -> dict[str, float]:
        stats = self.stats
        return {"local/exchanges": stats.steps, "local/dropped": stats.skipped}


def synchronization_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, train: TrainSettings, seed: int, world: World
) -> Synchronization:
    """What the settings ask for: local steps, or an exchange of gradients at every step."""
    rule = rule_of(train, seeded(compression_of(train.compression), seed))
    if rule is None:
        return GradientSync(model, optimizer, train, seed, world)
    return LocalSync(model, optimizer, rule)
