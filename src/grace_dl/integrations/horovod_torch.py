"""`hvd.DistributedOptimizer(optimizer, grace=...)`: Horovod's optimizer, with the gradients exchanged by GRACE.

Gradients are compressed and sent while backward runs, and are in place when `backward()` returns; `synchronize()` is then
a no-op. Options that are compatible with compression work as in Horovod; the others are rejected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import horovod.torch as hvd
import torch
from torch import Tensor

from ..algebra.text import as_method
from ..errors import ConfigError
from ..settings import passes
from ..transport.horovod import HorovodTransport
from .optimizer import OptimizerHandle
from .wrapper import distributed


def distributed_optimizer(
    optimizer: torch.optim.Optimizer,
    grace: Any,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = hvd.Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = hvd.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = hvd.global_process_set,
) -> torch.optim.Optimizer:
    """The optimizer that `hvd.DistributedOptimizer(..., grace=grace)` returns; with Horovod's arguments."""
    method = as_method(grace)
    _check(compression, op, gradient_predivide_factor, num_groups, groups)
    passes(backward_passes_per_step)
    process_set = hvd.global_process_set if process_set is None else process_set
    handle = None
    if process_set.included():
        handle = OptimizerHandle(
            optimizer,
            method,
            HorovodTransport(process_set),
            named_parameters,
            hooked=False,
            passes=backward_passes_per_step,
            sum=op == hvd.Sum,
            sparse_as_dense=sparse_as_dense,
        )
    # hvd.broadcast_optimizer_state bypasses a class of this module to initialise optimizer state without an exchange.
    return distributed(optimizer, handle, module="horovod.torch.optimizer")


def _check(compression: Any, op: Any, predivide: float, num_groups: int, groups: Any) -> None:
    """Reject Horovod options that are incompatible with compression."""
    if op == hvd.Adasum:
        raise ConfigError(
            "op=hvd.Adasum cannot be combined with grace: Adasum weighs full gradients against each other on the way, "
            "which compressed ones do not allow. Use op=hvd.Average or hvd.Sum, or Adasum without grace."
        )
    if op not in (hvd.Average, hvd.Sum):
        raise ConfigError(f"op={op!r} cannot be combined with grace; use hvd.Average or hvd.Sum.")
    if compression is not hvd.Compression.none:
        raise ConfigError(
            f"compression={getattr(compression, '__name__', compression)!r} and grace are two compressions of one "
            "gradient; leave compression out (the same as a method of ours: grace=grace_dl.fp16())."
        )
    if predivide != 1.0:
        raise ConfigError(
            f"gradient_predivide_factor={predivide} has no meaning with grace, which averages in float32 after "
            "decoding; leave it out."
        )
    if num_groups or groups is not None:
        raise ConfigError(
            "num_groups and groups cannot be combined with grace, which puts gradients in buckets of its own; leave "
            "them out."
        )
