"""An optimizer whose gradients are averaged over workers with low-rank compression while backward runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ...algebra.named import Named, build
from ...communicator.state import State
from ...compressor.lowrank import LowRankCompressor
from ...errors import ConfigError
from ...integrations.optimizer import OptimizerHandle
from ...integrations.wrapper import distributed
from ...registry import unknown
from ...settings import passes
from ...transport import detect
from ...transport.local import LocalTransport
from . import world

METHODS = {"acpsgd": "acpsgd", "powersgd": "powersgd", "ssgd": "none"}
"""Valid values of `method`, and their compression methods."""

THRESHOLD = 25
"""Megabytes of gradients per bucket."""


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    rank: int = 4,
    threshold: float = THRESHOLD,
    *,
    method: str = "acpsgd",
    backward_passes_per_step: int = 1,
    scaler: Any = None,
    **settings: Any,
) -> Any:
    """Make `optimizer` average its gradients over all workers; returns it, with its class replaced by a subclass.

    Buckets are sized by what is sent: each holds the factors of about `threshold` MB of gradients (0: one tensor per
    bucket), and is sent as soon as backward has reached all of it. `backward_passes_per_step`: passes accumulated
    locally before each exchange. `scaler`: the GradScaler in use, so that residuals are rescaled when the loss scale
    changes. Further settings are those of `grace.acpsgd` (`min_compression_rate`, `start_iter`, `seed`, ...). `optimizer.grace` is
    the handle.

    >>> import torch
    >>> model = torch.nn.Linear(64, 64)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> optimizer = DistributedOptimizer(optimizer, model.named_parameters(), rank=2)
    >>> model(torch.ones(1, 64)).sum().backward()
    >>> optimizer.step()
    >>> optimizer.grace.stats().steps
    1
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if not 0 <= threshold < math.inf:
        raise ConfigError(
            f"threshold={threshold!r} must be a number of megabytes; {THRESHOLD} is usual, 0 fuses nothing."
        )
    passes(backward_passes_per_step)
    if not world.is_initialized():
        world.init()
    if method != "ssgd":
        settings["rank"] = rank
    chosen = build(METHODS[method], **settings)
    weigh, limit = _buckets(chosen, optimizer, threshold)
    handle = OptimizerHandle(
        optimizer,
        chosen,
        detect(),
        named_parameters,
        hooked=False,
        passes=backward_passes_per_step,
        scaler=scaler,
        weigh=weigh,
        bucket_bytes=limit,
    )
    return distributed(optimizer, handle, saves_state=True)


def _buckets(
    method: Named, optimizer: torch.optim.Optimizer, threshold: float
) -> tuple[Callable[[Tensor], int], int]:
    """The weight of a parameter in a bucket and the capacity of a bucket, both in bytes sent (Zhang 2023, IV.C).

    A bucket holds the compressed form of `threshold` MB of gradients on average: smaller buckets would add latency,
    larger ones would be sent late and overlap less with backward.
    """
    *_, last = method.parts()  # ignores the uncompressed start
    compressor = last.build(LocalTransport(), State()).compressor

    def weigh(parameter: Tensor) -> int:
        if not isinstance(compressor, LowRankCompressor) or not compressor.fits(parameter.shape):
            return parameter.nbytes
        return (
            sum(compressor.payload_bytes_of(parameter.shape, parameter.dtype, step) for step in (0, 1)) // 2
        )

    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    dense = sum(p.nbytes for p in parameters) or 1
    sent = sum(weigh(p) for p in parameters)
    return weigh, max(1, round(threshold * 2**20 * sent / dense))
