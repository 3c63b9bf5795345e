"""Synchronization of gradients: through DDP, through the reducer without DDP, or none for a single process.

Only this file of `train` deals with communicators.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .. import registry
from ..communicator.base import Communicator
from ..compressor.base import Compressor
from ..dgc.optimizer import check_pair
from ..errors import ConfigError
from ..helper import grace_from_params
from ..telemetry import Stats
from .schema import TrainSettings
from .tree import Config
from .world import World

_BUFFERS = "forward_sync_buffers"
"""DDP's option to copy running statistics from rank 0 at every step; releases before had another name for it."""
if _BUFFERS not in inspect.signature(DistributedDataParallel.__init__).parameters:
    _BUFFERS = "broadcast_buffers"


def grace(compressor: str = "none", **settings: Any) -> Communicator:
    """Any method by name, for `configs.train.compression`; settings as for `grace_from_params`."""
    return grace_from_params({"compressor": compressor, **settings})


def communicator_of(compression: Config | None, seed: int) -> Communicator | None:
    """The communicator for `configs.train.compression`; every form that the setting may take is handled here."""
    if compression is None:
        return None
    built = compression()
    if isinstance(built, Communicator):
        return built
    if hasattr(built, "communicator"):
        return built.communicator(seed=seed)
    if isinstance(built, Compressor):
        kind = registry.communicator_class(registry.method_of(built).communicator)
        return kind(built, seed=seed)
    raise ConfigError(
        f"configs.train.compression builds {type(built).__name__}, which is neither a compressor nor a communicator; use "
        "Config(DGCCompressor, ...), or Config(grace, compressor='topk', ...)."
    )


class GradientSync:
    """Synchronizes the gradients of a model, with `passes` backward passes in a step."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        train: TrainSettings,
        seed: int,
        world: World,
    ) -> None:
        self.model: nn.Module = model
        self.passes = train.num_batches_per_step
        self.communicator = communicator_of(train.compression, seed)
        self._world, self._stats = world, Stats()
        self._dense = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        if self.communicator is not None:
            check_pair(optimizer, self.communicator.memory)
        if dist.is_initialized() and train.engine == "ddp":
            # Running statistics stay each rank's own, and are averaged for an evaluation.
            options: dict[str, Any] = {_BUFFERS: False}
            self.model = DistributedDataParallel(model, **options)
            if self.communicator is not None:
                self.communicator.attach(self.model)
            return
        if dist.is_initialized():
            self.communicator = self.communicator or grace("none")
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)
        if self.communicator is not None:
            named = model.named_parameters()
            self.communicator.attach(optimizer, named_parameters=named, passes=self.passes)

    @contextlib.contextmanager
    def backward_pass(self, number: int) -> Iterator[None]:
        """The context of forward and backward pass `number`; the last pass of a step synchronizes."""
        if isinstance(self.model, DistributedDataParallel) and number + 1 < self.passes:
            with self.model.no_sync():
                yield
        else:
            yield
        if self.communicator is None and number + 1 == self.passes:
            # Plain DDP: a ring all-reduce of everything.
            size = self._world.size
            self._stats.steps += 1
            self._stats.dense_bytes += self._dense
            self._stats.payload_bytes += self._dense if size > 1 else 0
            self._stats.leaving_bytes += 2 * self._dense * (size - 1) // size

    @property
    def stats(self) -> Stats:
        """Totals of this rank since the run began, before a resume too."""
        return self._stats if self.communicator is None else self.communicator.stats

    @property
    def skips_nonfinite(self) -> bool:
        """Whether steps with gradients that are not finite are skipped, and counted in `stats.skipped`."""
        return self.communicator is not None

    def epoch(self, epoch: int) -> None:
        """Start an epoch; warm-ups depend on it."""
        compressor: Any = None if self.communicator is None else self.communicator.compressor
        if hasattr(compressor, "warmup_compress_ratio") and not getattr(compressor, "warmup_steps", 0):
            compressor.warmup_compress_ratio(epoch)

    @property
    def share(self) -> float | None:
        """The share of elements sent now, for methods that have one."""
        compressor = None if self.communicator is None else self.communicator.compressor
        return getattr(compressor, "ratio", getattr(compressor, "compress_ratio", None))

    def state_dict(self) -> dict[str, Any]:
        return {
            "stats": asdict(self.stats),
            "communicator": None if self.communicator is None else self.communicator.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.communicator is not None:
            self.communicator.load_state_dict(state["communicator"])
        for name, value in state["stats"].items():
            setattr(self.stats, name, value)
