"""`grace.attach` and `grace.manual`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ..algebra.base import Method
from ..algebra.text import CarriesMethod, as_method
from ..errors import ConfigError
from ..handle import Handle, ManualHandle
from ..session import Session
from ..transport import Transport, detect
from .ddp import DDPHandle
from .fsdp import NO_REPLICAS, FSDPHandle, is_sharded
from .optimizer import OptimizerHandle


def attach(
    target: torch.nn.Module | torch.optim.Optimizer,
    method: Method | str | CarriesMethod,
    *,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    scaler: Any = None,
    backward_passes: int = 1,
    replicas: Method | str | CarriesMethod | None = None,
) -> Handle:
    """Compress the gradients of `target` with `method` while the backward pass runs. Call it on all ranks.

    Ranks compare method and settings here; if they differ, every rank raises `LayoutError`. With several targets, attach
    them in the same order on all ranks, in one thread; their steps may then run in different threads.

    `target`: a `DistributedDataParallel` model, a model sharded by `fully_shard` (FSDP2), or an optimizer (under Horovod,
    `torch.distributed` or in a single process); with an optimizer pass `named_parameters=model.named_parameters()`. A
    model compiled by `torch.compile` may be passed in place of its original. `method`: a method such as
    `grace.topk(0.01)`, or its text form. `scaler`: the GradScaler in use, if any, so that state is rescaled when the
    loss scale changes. `backward_passes`: for an optimizer, passes accumulated locally before each exchange. `replicas`:
    for a model sharded over a mesh of two dimensions, the method between replicas; `method` by default.

    >>> import grace_dl as grace
    >>> model = torch.nn.Linear(64, 64)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> handle = grace.attach(optimizer, grace.topk(0.01), named_parameters=model.named_parameters())
    >>> model(torch.ones(1, 64)).sum().backward()
    >>> optimizer.step()
    >>> handle.stats().steps
    1
    """
    chosen = as_method(method)
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise ConfigError(
            f"scaler={scaler!r} is no gradient scaler; pass the torch.amp.GradScaler in use, or None."
        )
    compiled = getattr(target, "_orig_mod", None)  # the original of a model that `torch.compile` returned
    model: Any = target if compiled is None else compiled
    if isinstance(model, torch.nn.Module) and (named_parameters is not None or backward_passes != 1):
        raise ConfigError(
            "named_parameters and backward_passes go with an optimizer; a model has both by itself."
        )
    if is_sharded(model):
        between = None if replicas is None else as_method(replicas)
        return FSDPHandle(model, chosen, between, scaler=scaler)
    if replicas is not None:
        raise ConfigError(NO_REPLICAS)
    if isinstance(model, torch.optim.Optimizer):
        return OptimizerHandle(
            model, chosen, detect(), named_parameters, scaler=scaler, passes=backward_passes
        )
    if isinstance(model, DistributedDataParallel):
        return DDPHandle(model, chosen, scaler=scaler)
    raise ConfigError(
        f"attach() takes a DistributedDataParallel model, a model sharded by fully_shard, or an optimizer, not "
        f"{type(target).__name__}; wrap the model in DistributedDataParallel, or pass the optimizer with "
        "named_parameters=model.named_parameters()."
    )


def manual(method: Method | str | CarriesMethod, *, transport: Transport | None = None) -> ManualHandle:
    """Return a handle for hand-written loops, which exchange gradients with `handle.step(tensor, name)`.

    `transport`: the ranks to exchange with; by default those of the running engine.
    """
    return ManualHandle(Session(as_method(method), detect() if transport is None else transport))
