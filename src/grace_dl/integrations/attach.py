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
from .optimizer import OptimizerHandle


def attach(
    target: DistributedDataParallel | torch.optim.Optimizer,
    method: Method | str | CarriesMethod,
    *,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    scaler: Any = None,
    backward_passes: int = 1,
) -> Handle:
    """Compress the gradients of `target` with `method` while the backward pass runs. Call it on all ranks.

    `target`: a `DistributedDataParallel` model, or an optimizer (under Horovod, `torch.distributed` or in a single
    process); with an optimizer pass `named_parameters=model.named_parameters()`. `method`: a method such as
    `grace.topk(0.01)`, or its text form. `scaler`: the GradScaler in use, if any, so that state is rescaled when the
    loss scale changes. `backward_passes`: for an optimizer, passes accumulated locally before each exchange.

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
    if isinstance(target, torch.optim.Optimizer):
        return OptimizerHandle(
            target, chosen, detect(), named_parameters, scaler=scaler, passes=backward_passes
        )
    if named_parameters is not None or backward_passes != 1:
        raise ConfigError(
            "named_parameters and backward_passes go with an optimizer; a DDP model has both by itself."
        )
    if isinstance(target, DistributedDataParallel):
        return DDPHandle(target, chosen, scaler=scaler)
    raise ConfigError(
        f"attach() takes a DistributedDataParallel model or an optimizer, not {type(target).__name__}; wrap the model in "
        "DistributedDataParallel, or pass the optimizer with named_parameters=model.named_parameters()."
    )


def manual(method: Method | str | CarriesMethod, *, transport: Transport | None = None) -> ManualHandle:
    """Return a handle for hand-written loops, which exchange gradients with `handle.step(tensor, name)`.

    `transport`: the ranks to exchange with; by default those of the running engine.
    """
    return ManualHandle(Session(as_method(method), detect() if transport is None else transport))
