"""Starts a measurement in an unchanged training script: the first `DistributedDataParallel` model it makes is measured.

`grace plan -- COMMAND` puts a `sitecustomize` with `install()` on the path of the command's processes. Nothing but the standard
library is imported here, as every Python process of the command runs it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

FOLDER = "GRACE_PLAN_FOLDER"
METHODS = "GRACE_PLAN_METHODS"
STEPS = "GRACE_PLAN_STEPS"
"""Environment variables: where results go, which methods are measured (a list of texts, in JSON), and steps of each."""

PLAIN, SILENT = "ddp", "silent"
"""Ways of exchange that are measured beside methods: a plain all-reduce, and none at all."""

SITECUSTOMIZE = """\
import sys

# The sitecustomize that this one hides, if any, runs first.
here = __file__.rpartition("/")[0]
sys.path[:] = [entry for entry in sys.path if entry != here]
mine = sys.modules.pop("sitecustomize")
try:
    import sitecustomize
except ImportError:
    sys.modules["sitecustomize"] = mine

from grace_dl.integrations.script_hook import install

install()
"""

_TARGET = "torch.nn.parallel.distributed"


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for PyTorch's module to be imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name != _TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                patch(module.DistributedDataParallel)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Measure the first DDP model of this process, if it is a rank of the command."""
    if os.environ.get(FOLDER) and "RANK" in os.environ:
        sys.meta_path.insert(0, _Finder())


def patch(ddp: Any) -> None:
    """Start a measurement when the first model is wrapped."""
    original = ddp.__init__

    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        if type(self) is ddp and ddp.__init__ is not original:
            ddp.__init__ = original
            from .script_measurement import ScriptMeasurement

            ScriptMeasurement.start(self)

    ddp.__init__ = __init__
