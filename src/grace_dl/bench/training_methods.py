"""Methods in the settings of training: the config files and overrides of a method, and the method of a saved config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..algebra.named import Named, build
from ..algebra.text import parse
from .selection import DDP

_DGC_FILE = "configs/dgc/wm0.py"
"""DGC's momentum moves from the optimizer into the memory, which is more than a choice of method."""

_DGC_PATHS = {
    "ratio": "compression.compress_ratio",
    "warmup_stages": "compression.warmup_epochs",
    "momentum": "optimizer.momentum",
    "nesterov": "optimizer.nesterov",
    "momentum_masking": "compression.memory.momentum_masking",
    "gradient_clipping": "compression.memory.gradient_clipping",
}
"""Where DGC's settings are in the tree, if not under their own names in `compression`."""


def files_and_overrides(method: str) -> tuple[list[str], dict[str, Any]]:
    """Config files to add to those of a task, and overrides, that make training use a method.

    >>> files_and_overrides("powersgd:2")
    (['configs/grace.py'], {'train.compression': 'powersgd:2'})
    """
    if method == DDP:
        return [], {}
    parsed = parse(method)
    if not isinstance(parsed, Named) or parsed.name != "dgc":
        return ["configs/grace.py"], {"train.compression": str(parsed)}
    settings = {p.name: parsed.get(p.name) for p in parsed.info.parameters[:1]} | dict(parsed.settings)
    paths = {name: _DGC_PATHS.get(name, f"compression.{name}") for name in settings}
    return [_DGC_FILE], {f"train.{paths[name]}": _plain(value) for name, value in settings.items()}


def method_in(configs: Mapping[str, Any], epoch_steps: int) -> str:
    """The text of the method that a saved config trains with. `epoch_steps`: the steps of an epoch.

    >>> method_in({"train": {"compression": "topk:0.1"}}, epoch_steps=100)
    'topk:0.1'
    """
    compression = configs["train"]["compression"]
    if compression is None:
        return DDP
    if isinstance(compression, str):
        return str(parse(compression))
    settings = {name: value for name, value in compression.items() if name != "()"}
    target = compression["()"].rpartition(".")[2]
    if target == "DGCCompressor":
        return str(_dgc(settings, epoch_steps))
    return f"{target}({', '.join(f'{name}={value}' for name, value in settings.items())})"


def _dgc(settings: dict[str, Any], epoch_steps: int) -> Named:
    memory = {k: v for k, v in (settings.pop("memory", None) or {}).items() if k != "()"}
    for name, path in _DGC_PATHS.items():
        if path.startswith("compression."):
            values, key = (memory if ".memory." in path else settings), path.rpartition(".")[2]
            if key in values:
                values[name] = values.pop(key)
    if settings["warmup_stages"]:
        settings["warmup_steps"] = settings["warmup_steps"] or epoch_steps
    else:
        settings.update(warmup_steps=0, warmup_coeff=None)
    if isinstance(memory.get("gradient_clipping"), dict):
        memory["gradient_clipping"] = None  # a function, which has no text
    return build("dgc", **settings, **memory)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
