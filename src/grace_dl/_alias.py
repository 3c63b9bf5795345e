"""Other names for the one implementation: `grace_dl.dist.compressor.topk` is `grace_dl.compressor.topk`.

Scripts import methods from a package per framework; a finder answers those imports with the one module, so that
classes are the same objects whichever name they are imported by.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

_SHARED = ("compressor", "memory", "communicator", "helper")
_packages: set[str] = set()


class _Loader(importlib.abc.Loader):
    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._target)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has stamped the alias's spec on the shared module: put its own back.
        module.__spec__ = self._spec


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for package in _packages:
            rest = fullname.removeprefix(package + ".")
            if rest != fullname and rest.split(".")[0] in _SHARED:
                real = f"grace_dl.{rest}"
                if importlib.util.find_spec(real) is None:
                    return None
                return importlib.machinery.ModuleSpec(fullname, _Loader(real))
        return None


def alias(package: str) -> None:
    """Let `package` offer the shared modules under its own name."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _packages.add(package)
