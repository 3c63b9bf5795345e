"""How the gradients of a run meet: through DDP, through the reducer without it, or not at all."""

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
from .world import World

_BUFFERS = "forward_sync_buffers"
"""DDP's option to copy running statistics from rank 0 at every step; releases before had another name for it."""
if _BUFFERS not in inspect.signature(DistributedDataParallel.__init__).parameters:
    _BUFFERS = "broadcast_buffers"


def grace(compressor: str = "none", **settings: Any) -> Communicator:
    """Any method by name, for `configs.train.compression`; settings as for `grace_from_params`."""
    return grace_from_params({"compressor": compressor, **settings})


def communicator_of(compression: Any, seed: int) -> Communicator:
    """What `configs.train.compression` builds, as a communicator."""
    if isinstance(compression, Communicator):
        return compression
    if hasattr(compression, "communicator"):
        return compression.communicator(seed=seed)
    if isinstance(compression, Compressor):
        kind = registry.communicator_class(registry.method_of(compression).communicator)
        return kind(compression, seed=seed)
    raise ConfigError(
        f"configs.train.compression builds {type(compression).__name__}, which is neither a compressor nor a communicator; use "
        "Config(DGCCompressor, ...), or Config(grace, compressor='topk', ...)."
    )


class GradientExchange:
    """The exchange of a model's gradients, with `passes` backward passes a step."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        communicator: Communicator | None,
        world: World,
        engine: str,
        passes: int,
    ) -> None:
        self.module, self.passes, self.communicator = model, passes, communicator
        self.model: nn.Module = model
        self._stats = Stats()
        self._dense = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        self._world = world
        if communicator is not None:
            check_pair(optimizer, communicator.memory)
        if dist.is_initialized() and engine == "ddp":
            # Running statistics stay each rank's own, and are averaged for an evaluation.
            options: dict[str, Any] = {_BUFFERS: False}
            self.model = DistributedDataParallel(model, **options)
            if communicator is not None:
                communicator.attach(self.model)
            return
        if communicator is None and dist.is_initialized():
            self.communicator = communicator = grace("none")
        if dist.is_initialized():
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)
        if communicator is not None:
            communicator.attach(optimizer, named_parameters=model.named_parameters(), passes=passes)

    @contextlib.contextmanager
    def backward_pass(self, number: int) -> Iterator[None]:
        """Around forward and backward of pass `number`; the last one exchanges."""
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
        """What the exchange cost this rank since the run began, earlier processes included."""
        return self._stats if self.communicator is None else self.communicator.stats

    def epoch(self, epoch: int) -> None:
        """Tell the method that an epoch begins: warm-ups go by it."""
        compressor: Any = None if self.communicator is None else self.communicator.compressor
        if hasattr(compressor, "warmup_compress_ratio") and not getattr(compressor, "warmup_steps", 0):
            compressor.warmup_compress_ratio(epoch)

    @property
    def share(self) -> float | None:
        """The share of elements sent at present, for methods that have one."""
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
