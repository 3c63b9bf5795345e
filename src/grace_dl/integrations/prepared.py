"""Attaching to models that a training framework has wrapped: the part its adapters share."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..algebra.base import Method
from ..algebra.text import CarriesMethod, as_method
from ..errors import ConfigError, MissingExtraError
from ..handle import Handle
from ..session import Session
from ..transport.local import LocalTransport
from ..tuning.tuner import AutoTuner
from .attach import attach
from .fsdp import is_sharded
from .rank_state import gather_state, scatter_state


def attach_prepared(
    model: torch.nn.Module,
    method: Method | str | CarriesMethod,
    *,
    scaler: Any = None,
    remedy: str,
) -> Handle:
    """Attach to what a framework made of a model. `remedy`: how to get a model that can be attached.

    A single process has nothing to exchange: its handle leaves gradients alone and counts no bytes.
    """
    inner = getattr(model, "_orig_mod", model)  # of a compiled model
    if isinstance(inner, DistributedDataParallel) or is_sharded(inner):
        return attach(inner, method, scaler=scaler)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Handle(Session(as_method(method), LocalTransport(), tuner=AutoTuner))
    raise ConfigError(
        f"GRACE compresses the gradients of DistributedDataParallel and FSDP2 models, not of {type(inner).__name__}; "
        f"{remedy}."
    )


class Attachment:
    """A method that is attached once a framework has wrapped the model; base of the callbacks."""

    remedy = "wrap the model in DistributedDataParallel"

    def __init__(self, method: Method | str | CarriesMethod) -> None:
        self.method = as_method(method)
        self._handle: Handle | None = None
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._saved: Mapping[str, Any] | None = None

    @property
    def handle(self) -> Handle:
        """The handle, from the start of training on; in processes that train."""
        if self._handle is None:
            raise ConfigError(
                f"{self.method} is not attached yet: read .handle once training has started, in a process that trains."
            )
        return self._handle

    def attach(self, model: torch.nn.Module, scaler: Any = None) -> Handle:
        """Attach to a wrapped model; state that was loaded before is restored. An attached model stays as it is."""
        if self._handle is None or self._handle.closed or self._model is None or self._model() is not model:
            if self._handle is not None:
                self._handle.close()
            self._handle = attach_prepared(model, self.method, scaler=scaler, remedy=self.remedy)
            self._model = weakref.ref(model)
        return self._handle

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks, on rank 0; empty on other ranks and before training. Call it on all ranks."""
        return gather_state(self._handle) if self._handle is not None and not self._handle.closed else {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep the state of all ranks for `restore`."""
        self._saved = state_dict

    def restore(self) -> None:
        """Load what `load_state_dict` was given, if anything."""
        saved, self._saved = self._saved, None
        if saved:
            scatter_state(self.handle, saved)


def missing(package: str, extra: str, error: ImportError) -> MissingExtraError:
    """The error for a framework that is not installed."""
    return MissingExtraError(f"{package} is not installed: pip install 'grace-dl[{extra}]' ({error})")
