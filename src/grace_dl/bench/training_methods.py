"""Conversion between methods and training settings (config files and overrides)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import catalog
from ..algebra.local_rule import SETTINGS, LocalRule
from ..algebra.named import Named
from ..algebra.text import parse, parse_rule
from ..compat.dgc import DGCCompressor, DGCSGDMemory
from ..memory.dgc import DgcMemory
from ..train.schema import LocalSettings
from .selection import DDP

_DGC_FILE = "configs/dgc/wm0.py"
"""Replaces SGD by DGCSGD, which leaves momentum and clipping to the method."""
_LOCAL_FILE = "configs/local/average.py"
"""Turns on local steps, with a rate that does not depend on the number of workers."""


def files_and_overrides(method: str) -> tuple[list[str], dict[str, Any]]:
    """Config files to add to those of a task, and overrides, that make training use a method.

    >>> files_and_overrides("powersgd:2")
    ([], {'train.compression': 'powersgd:2'})
    """
    if method == DDP:
        return [], {}
    parsed = parse_rule(method)
    if isinstance(parsed, LocalRule):
        local = LocalSettings(**{name: getattr(parsed, name) for name in SETTINGS})
        return [_LOCAL_FILE], {"train.compression": str(parsed.method), "train.local": local}
    overrides: dict[str, Any] = {"train.compression": str(parsed)}
    for part in parsed.parts():
        if isinstance(part, Named) and catalog.memory_for(part.info, part.get("memory")) is DgcMemory:
            momenta = {f"train.optimizer.{name}": part.get(name) for name in ("momentum", "nesterov")}
            return [_DGC_FILE], {**overrides, **momenta}
    return [], overrides


def method_in(configs: Mapping[str, Any], epoch_steps: int) -> str:
    """The text of the method or rule that a saved config trains with. `epoch_steps`: the steps of an epoch.

    >>> method_in({"train": {"compression": "topk:0.1"}}, epoch_steps=100)
    'topk:0.1'
    >>> method_in({"train": {"compression": "int4", "local": {"every": 20}}}, epoch_steps=100)
    'local(int4; every=20)'
    """
    compression = configs["train"]["compression"]
    if (local := configs["train"].get("local")) is not None:
        return str(LocalRule(parse(compression or "none"), **local))
    if compression is None:
        return DDP
    if isinstance(compression, str):
        return str(parse(compression))
    settings = {name: value for name, value in compression.items() if name != "()"}
    target = compression["()"].rpartition(".")[2]
    if target == DGCCompressor.__name__:
        return _dgc(settings, epoch_steps)
    return f"{target}({', '.join(f'{name}={value}' for name, value in settings.items())})"


def _dgc(settings: dict[str, Any], epoch_steps: int) -> str:
    """The method of a `DGCCompressor`; stages of an epoch become stages of that many steps."""
    memory = {name: value for name, value in (settings.get("memory") or {}).items() if name != "()"}
    if isinstance(memory.get("gradient_clipping"), dict):
        memory["gradient_clipping"] = None  # a function, which has no text
    steps = settings.get("warmup_steps") or epoch_steps
    compressor = DGCCompressor(**{**settings, "memory": DGCSGDMemory(**memory), "warmup_steps": steps})
    return str(compressor.method)
