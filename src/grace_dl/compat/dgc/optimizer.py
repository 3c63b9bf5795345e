"""`DistributedOptimizer`: DGC for an optimizer without DDP, with the original interface."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ... import catalog
from ...algebra.base import Method
from ...algebra.named import Named
from ...algebra.text import as_method, carries_method
from ...errors import ConfigError
from ...integrations.optimizer import OptimizerHandle
from ...integrations.wrapper import distributed
from ...memory.dgc import DgcMemory
from ...transport import detect
from .compression import DGCCompressor
from .plain import Compression
from .sgd import DGCSGD


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = None,
    *,
    seed: int = 0,
) -> Any:
    """Exchange the optimizer's gradients while backward runs; returns the same optimizer.

    The engine is detected: Horovod, torch.distributed, or a single process. `compression`: a `DGCCompressor`, or
    `Compression.none` or `.fp16`. `op`: only the average is supported. `optimizer.grace` is the handle.
    """
    horovod = sys.modules.get("horovod.torch")
    if op is not None and (horovod is None or op != horovod.Average):
        raise ConfigError(f"op={op!r} cannot be combined with DGC, which averages; leave it out.")
    method = _method(compression, seed)
    check_pair(optimizer, method)
    handle = OptimizerHandle(
        optimizer, method, detect(), named_parameters, hooked=False, passes=backward_passes_per_step
    )
    if isinstance(compression, DGCCompressor):
        compression.serve(handle)
    # hvd.broadcast_optimizer_state bypasses a class of Horovod's module.
    return distributed(optimizer, handle, module=None if horovod is None else "horovod.torch.optimizer")


def _method(compression: Any, seed: int) -> Method:
    if isinstance(compression, DGCCompressor):
        return compression.method_with(seed=seed)
    if carries_method(compression):
        return as_method(compression)
    raise ConfigError(
        f"compression={compression!r} is no DGCCompressor and none of Compression; for a method of your own use "
        "grace.attach(optimizer, grace.custom(compressor), named_parameters=...)."
    )


def check_pair(optimizer: torch.optim.Optimizer, method: Method) -> None:
    """Reject an optimizer and a method whose momenta contradict each other; warn where momentum is applied twice."""
    found = [part for part in method.parts() if isinstance(part, Named) and _has_momentum(part)]
    if not found:
        return
    momentum, nesterov = found[0].get("momentum"), found[0].get("nesterov")
    for group in optimizer.param_groups:
        own, own_nesterov = group.get("momentum", 0.0), group.get("nesterov", False)
        if not isinstance(optimizer, DGCSGD):
            if own and momentum:
                warnings.warn(
                    f"{type(optimizer).__name__} applies momentum={own} on top of the memory's {momentum}; use DGCSGD, or "
                    "momentum=0.",
                    stacklevel=3,
                )
        elif group["weight_decay"] and (own, own_nesterov) != (momentum, nesterov):
            raise ConfigError(
                f"DGCSGD has momentum={own}, nesterov={own_nesterov}, but the memory, where the gradient's momentum lives, has "
                f"momentum={momentum}, nesterov={nesterov}; give both the same."
            )
        elif own_nesterov and not nesterov:
            raise ConfigError(
                "nesterov=True of DGCSGD does not reach the gradient, whose momentum lives in the memory; build that as "
                "DGCSGDMemory(nesterov=True)."
            )


def _has_momentum(part: Named) -> bool:
    return catalog.memory_for(part.info, part.get("memory")) is DgcMemory
