"""GRACE: gradient compression for distributed deep learning.

Importing this package imports no framework; names are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_LAZY = {
    "Compressor": "compressor.base",
    "Memory": "memory.base",
    "Communicator": "communicator.base",
    "grace_from_params": "helper",
    "register": "registry",
    "method": "registry",
    "methods": "registry",
    "simulated": "transport.simulated",
    "GraceError": "errors",
}

__all__ = ["__version__", *_LAZY]

if TYPE_CHECKING:
    from .communicator.base import Communicator
    from .compressor.base import Compressor
    from .errors import GraceError
    from .helper import grace_from_params
    from .memory.base import Memory
    from .registry import method, methods, register
    from .transport.simulated import simulated


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
