"""Hot loops on flat buffers: one function an operation, the same signature in every backend.

`reference` is plain torch, runs anywhere and is the oracle; `native` is the compiled CPU core; `triton` serves
CUDA tensors. `GRACE_KERNELS=reference|native|triton` forces one.
"""

from __future__ import annotations

import functools
import importlib
import os
from types import ModuleType

from torch import Tensor

from ..errors import ConfigError

BACKENDS = ("reference", "native", "triton")
_REMEDY = {"native": "reinstall with a C++ compiler present", "triton": "pip install 'grace-dl[triton]'"}


def of(tensor: Tensor) -> ModuleType:
    """The backend that serves tensors like this one."""
    return backend(os.environ.get("GRACE_KERNELS", ""), tensor.device.type)


@functools.cache
def backend(forced: str, device: str) -> ModuleType:
    """The backend for a device type, or the one that is forced."""
    if forced and forced not in BACKENDS:
        raise ConfigError(f"GRACE_KERNELS={forced!r} is no backend; choose one of {', '.join(BACKENDS)}.")
    wanted = forced or {"cpu": "native", "cuda": "triton"}.get(device, "reference")
    try:
        module = importlib.import_module(f"grace_dl.kernels.{wanted}")
    except ImportError as error:
        if forced:
            raise ConfigError(
                f"GRACE_KERNELS={forced!r} asks for a backend that cannot be loaded ({error}); "
                f"{_REMEDY.get(wanted, 'reinstall')}, or unset GRACE_KERNELS."
            ) from error
        return importlib.import_module("grace_dl.kernels.reference")
    if wanted == "triton":
        module.ready(device)
    return module
