"""GRACE: gradient compression for distributed deep learning.

    import grace_dl as grace

    handle = grace.attach(ddp_model, grace.topk(0.01))
    print(handle.stats())

Importing this package imports no framework; names are loaded on first use.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "attach": "integrations.attach",
    "manual": "integrations.attach",
    "LocalSteps": "integrations.local_steps",
    "OneBitAdam": "integrations.onebit_adam",
    "ZeroOneAdam": "integrations.onebit_adam",
    "save": "checkpoints",
    "load": "checkpoints",
    "stateful": "checkpoints",
    "Handle": "handle",
    "Method": "algebra.base",
    "by_parameter": "algebra.compose",
    "schedule": "algebra.compose",
    "hierarchical": "algebra.hierarchical",
    "auto": "algebra.auto",
    "custom": "algebra.custom",
    "parse": "algebra.text",
    "Compressor": "compressor.base",
    "Memory": "memory.base",
    "Communicator": "communicator.base",
    "register": "registry",
    "profile": "plan.recorder",
    "simulated": "transport.simulated",
    "GraceError": "errors",
    "grace_from_params": "compat.params",
}


def _method_names() -> list[str]:
    """The built-in methods, which are modules of `methods/`; none is imported."""
    files = os.listdir(os.path.join(os.path.dirname(__file__), "methods"))
    return sorted(name[:-3] for name in files if name.endswith(".py") and not name.startswith("_"))


__all__ = ["__version__", *_LAZY, *_method_names()]


def __getattr__(name: str) -> Any:
    """Load a name of the interface, or the constructor of a method, registered or built in."""
    if name in _LAZY:
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    else:
        registry = sys.modules.get(f"{__name__}.registry")
        if name not in __all__ and (registry is None or name not in registry.methods):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = importlib.import_module(f"{__name__}.algebra.named").constructor(name)
    if name in __all__:
        globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
