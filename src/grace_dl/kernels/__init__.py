"""Inner loops on contiguous buffers: one function per operation, the same signature in every backend (`interface`).

`reference` is plain torch, runs anywhere and defines the results; `native` is the compiled CPU core; `triton` is for
CUDA tensors. `GRACE_KERNELS=reference|native|triton` forces one. Callers use only `of`, `wire` and `check`.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from typing import cast

from torch import Tensor

from ..errors import ConfigError, UnsupportedError
from .check import has_memory
from .interface import Kernels
from .source import Correction, Leave, Source

__all__ = ["BACKENDS", "Correction", "Kernels", "Leave", "Source", "backend", "forced", "name_for", "of"]

BACKENDS = ("reference", "native", "triton")
forced = os.environ.get("GRACE_KERNELS", "")
"""The forced backend, if any: the value of `GRACE_KERNELS` at program start. (Looking it up for every tensor took as
long as compressing a small one.)"""
_REMEDY = {"native": "reinstall with a C++ compiler present", "triton": "pip install 'grace-dl[triton]'"}


def of(tensor: Tensor) -> Kernels:
    """The backend for tensors like this one."""
    if not has_memory(tensor):
        raise UnsupportedError(
            f"a kernel was given a {type(tensor).__name__}, which has no memory of its own; pass a plain tensor."
        )
    return backend(forced, "cpu" if tensor.is_cpu else tensor.device.type)


def name_for(device: str) -> str:
    """The name of the backend for a device type, as result files record it."""
    return backend(forced, device).__name__.rpartition(".")[2]


@functools.cache
def backend(name: str, device: str) -> Kernels:
    """The backend for a device type, or the one of this name."""
    if name and name not in BACKENDS:
        raise ConfigError(f"GRACE_KERNELS={name!r} is no backend; choose one of {', '.join(BACKENDS)}.")
    wanted = name or {"cpu": "native", "cuda": "triton"}.get(device, "reference")
    try:
        module = importlib.import_module(f"grace_dl.kernels.{wanted}")
    except ImportError as error:
        if name:
            raise ConfigError(
                f"GRACE_KERNELS={name!r} asks for a backend that cannot be loaded ({error}); "
                f"{_REMEDY.get(wanted, 'reinstall')}, or unset GRACE_KERNELS."
            ) from error
        warnings.warn(
            f"GRACE has no {wanted} kernels here ({error}) and uses its reference kernels, which are several times slower; "
            f"{_REMEDY[wanted]}. GRACE_KERNELS=reference silences this notice.",
            RuntimeWarning,
            stacklevel=2,
        )
        module = importlib.import_module("grace_dl.kernels.reference")
    else:
        if wanted == "triton":
            module.ready(device)
    return cast(Kernels, module)
