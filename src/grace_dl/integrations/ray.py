"""Ray Train: `attach(model, method)` in the training function, after `ray.train.torch.prepare_model`."""

from __future__ import annotations

from typing import Any

import torch

from ..algebra.base import Method
from ..algebra.text import CarriesMethod
from ..handle import Handle
from .prepared import attach_prepared, missing

try:
    import ray.train.torch  # noqa: F401
except ImportError as _error:
    raise missing("Ray Train", "ray", _error) from _error


def attach(model: torch.nn.Module, method: Method | str | CarriesMethod, *, scaler: Any = None) -> Handle:
    """Compress the gradients of `model`, as returned by `prepare_model`. Call it on all workers.

    Every worker saves its state with the checkpoint: `grace.save(handle, folder)` before `ray.train.report`, and
    `grace.load(handle, folder)` after a restart. With one worker, training is the same as without GRACE.

    >>> model = ray.train.torch.prepare_model(model)  # doctest: +SKIP
    >>> handle = attach(model, "topk:0.01")  # doctest: +SKIP
    """
    return attach_prepared(
        model,
        method,
        scaler=scaler,
        remedy='pass the model that ray.train.torch.prepare_model() returned, with parallel_strategy="ddp"',
    )
