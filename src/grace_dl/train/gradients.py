"""Synchronization of gradients at every step: by DDP, by the optimizer without DDP, or none for a single process."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..algebra.base import Method
from ..algebra.named import Named, build
from ..algebra.text import as_method, carries_method
from ..compat.dgc.compression import DGCCompressor
from ..compat.dgc.optimizer import check_pair
from ..errors import ConfigError
from ..integrations.attach import attach
from .schema import TrainSettings
from .synchronization import Synchronization
from .tree import Config
from .world import World

_BUFFERS = "forward_sync_buffers"
"""DDP's option to copy running statistics from rank 0 at every step; it had another name in earlier releases."""
if _BUFFERS not in inspect.signature(DistributedDataParallel.__init__).parameters:
    _BUFFERS = "broadcast_buffers"


def compression_of(setting: Config | str | None) -> Method | DGCCompressor | None:
    """The value of `configs.train.compression`: the text of a method, or a Config that builds one."""
    built = setting() if isinstance(setting, Config) else setting
    if built is None or isinstance(built, DGCCompressor):
        return built
    if isinstance(built, str) or carries_method(built):
        return as_method(built)
    raise ConfigError(
        f"configs.train.compression is {built!r}, which is no method; give the text of one, such as topk:0.01, or "
        "Config(DGCCompressor, ...)."
    )


class GradientSync(Synchronization):
    """Synchronizes the gradients of a model, with `passes` backward passes in a step."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        train: TrainSettings,
        seed: int,
        world: World,
    ) -> None:
        super().__init__(model)
        self.passes = train.num_batches_per_step
        self._compression = compression_of(train.compression)
        self._world = world
        self._dense = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        method = seeded(self._compression, seed)
        if method is not None:
            check_pair(optimizer, method)
        if dist.is_initialized() and train.engine == "ddp":
            # Running statistics are local to each rank, and are averaged for an evaluation. DDP that looks for unused
            # parameters keeps its buckets; otherwise a process that resumes has others than the one that was killed. Gradients
            # that are views of the buckets save a copy, and pages of memory that every step would touch for the first time.
            options: dict[str, Any] = {
                _BUFFERS: False,
                "find_unused_parameters": True,
                "gradient_as_bucket_view": True,
            }
            self.model = DistributedDataParallel(model, **options)
            if method is not None:
                self._handle = attach(self.model, method)
        elif dist.is_initialized() or method is not None:
            if dist.is_initialized():
                for tensor in model.state_dict().values():
                    dist.broadcast(tensor, 0)
            self._handle = attach(
                optimizer,
                method or build("none"),
                named_parameters=model.named_parameters(),
                backward_passes=self.passes,
            )
        if isinstance(self._compression, DGCCompressor) and self._handle is not None:
            self._compression.serve(self._handle)

    @contextlib.contextmanager
    def backward_pass(self, number: int) -> Iterator[None]:
        """The context of forward and backward pass `number`; the last pass of a step synchronizes."""
        if isinstance(self.model, DistributedDataParallel) and number + 1 < self.passes:
            with self.model.no_sync():
                yield
        else:
            yield
        if self._handle is None and number + 1 == self.passes:
            # Plain DDP: a ring all-reduce of everything.
            size = self._world.size
            self._before.steps += 1
            self._before.dense_bytes += self._dense
            self._before.payload_bytes += self._dense if size > 1 else 0
            self._before.leaving_bytes += 2 * self._dense * (size - 1) // size

    def epoch(self, epoch: int) -> None:
        """Start an epoch; DGC's warm-up depends on it."""
        if isinstance(self._compression, DGCCompressor) and not self._compression.warmup_steps:
            self._compression.warmup_compress_ratio(epoch)

    @property
    def share(self) -> float | None:
        """The current share of elements sent, for methods that have one."""
        if isinstance(self._compression, DGCCompressor):
            return self._compression.ratio
        return super().share


def seeded(compression: Method | DGCCompressor | None, seed: int) -> Method | None:
    """The method with the run's seed, unless it has its own."""
    if isinstance(compression, DGCCompressor):
        return compression.method_with(seed=seed)
    if isinstance(compression, Named) and not compression.get("seed"):
        return compression.but(seed=seed)
    return compression
