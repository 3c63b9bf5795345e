"""Accelerate: `attach(accelerator, model, method)`, after `accelerator.prepare`."""

from __future__ import annotations

from typing import Any

import torch

from .. import checkpoints
from ..algebra.base import Method
from ..algebra.text import CarriesMethod
from ..handle import Handle
from .prepared import attach_prepared, missing
from .rank_state import load_state

try:
    import accelerate as _accelerate  # noqa: F401
except ImportError as _error:
    raise missing("Accelerate", "accelerate", _error) from _error


def attach(accelerator: Any, model: torch.nn.Module, method: Method | str | CarriesMethod) -> Handle:
    """Compress the gradients of `model`, as returned by `accelerator.prepare`. Call it on all ranks.

    `accelerator.save_state` then saves the state of every rank, and `accelerator.load_state` restores it. A single
    process trains as before.

    >>> from accelerate import Accelerator
    >>> accelerator = Accelerator(cpu=True)
    >>> model = accelerator.prepare(torch.nn.Linear(64, 64))
    >>> handle = attach(accelerator, model, "topk:0.01")
    """
    handle = attach_prepared(
        model,
        method,
        scaler=accelerator.scaler,
        remedy="pass the model that accelerator.prepare() returned, and use DDP (accelerate launch --multi_gpu --num_processes N)",
    )

    def save(models: Any, weights: Any, folder: str) -> None:
        if not handle.closed:
            checkpoints.save(handle, folder)

    def load(models: Any, folder: str) -> None:
        if not handle.closed:
            load_state(handle, folder)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    return handle
