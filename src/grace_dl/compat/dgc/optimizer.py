"""`DistributedOptimizer`: DGC for an optimizer without DDP, called as DGC's users call it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError
from ..memory.base import Memory
from ..memory.dgc import DgcMemory
from .compression import DGCCompressor
from .sgd import DGCSGD


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: DGCCompressor | None = None,
    backward_passes_per_step: int = 1,
    op: Any = None,
    *,
    seed: int = 0,
) -> torch.optim.Optimizer:
    """Exchange the optimizer's gradients by DGC while backward runs; returns the same optimizer.

    The engine is found: Horovod, torch.distributed, or one process alone. `optimizer.grace` is the handle with
    statistics. `compression`: a `DGCCompressor`, one with its defaults if not given. `op`: the average, the only one there is.
    """
    compression = DGCCompressor() if compression is None else compression
    if not isinstance(compression, DGCCompressor):
        raise ConfigError(
            f"compression={compression!r} is no DGCCompressor; for other methods use "
            "grace_from_params({...}).attach(optimizer, named_parameters=...)."
        )
    horovod = sys.modules.get("horovod.torch")
    if op is not None and (horovod is None or op != horovod.Average):
        raise ConfigError(f"op={op!r} cannot be combined with DGC, which averages; leave it out.")
    check_pair(optimizer, compression.memory)
    optimizer.grace = compression.communicator(seed=seed).attach(  # type: ignore[attr-defined]
        optimizer, named_parameters=named_parameters, passes=backward_passes_per_step
    )
    return optimizer


def check_pair(optimizer: torch.optim.Optimizer, memory: Memory) -> None:
    """Refuse an optimizer and a memory whose momenta contradict each other; warn where momentum is applied twice."""
    if not isinstance(memory, DgcMemory):
        return
    for group in optimizer.param_groups:
        momentum, nesterov = group.get("momentum", 0.0), group.get("nesterov", False)
        if not isinstance(optimizer, DGCSGD):
            if momentum and memory.momentum:
                warnings.warn(
                    f"{type(optimizer).__name__} applies momentum={momentum} on top of the memory's {memory.momentum}; use DGCSGD, "
                    "or momentum=0.",
                    stacklevel=3,
                )
        elif group["weight_decay"] and (momentum, nesterov) != (memory.momentum, memory.nesterov):
            raise ConfigError(
                f"DGCSGD has momentum={momentum}, nesterov={nesterov}, but the memory, where the gradient's momentum lives, has "
                f"momentum={memory.momentum}, nesterov={memory.nesterov}; give both the same."
            )
        elif nesterov and not memory.nesterov:
            raise ConfigError(
                "nesterov=True of DGCSGD does not reach the gradient, whose momentum lives in the memory; build that as "
                "DGCSGDMemory(nesterov=True)."
            )
