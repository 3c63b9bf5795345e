"""Names of parameters, independent of what a model is wrapped in."""

from __future__ import annotations

from collections.abc import Sequence

_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""Components that `torch.compile`, FSDP and activation checkpointing add, at any depth."""


def canonical(name: str) -> str:
    """The name of a parameter without the components that wrappers add.

    >>> canonical("module._orig_mod.layer.weight")
    'layer.weight'
    """
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


def canonical_names(names: Sequence[str]) -> list[str]:
    """Canonical names, or the names as they are if two would become the same."""
    found = [canonical(name) for name in names]
    return found if len(set(found)) == len(set(names)) else list(names)
