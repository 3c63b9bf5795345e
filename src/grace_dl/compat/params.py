"""`grace_from_params`: the original GRACE's dictionary of settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..algebra.named import Named, build
from ..errors import ConfigError

RATIO = 0.3
"""The original's default for methods that send a share of the elements."""


def method_from_params(params: Mapping[str, Any]) -> Named:
    """The method that a dictionary of settings stands for.

    >>> method_from_params({"compressor": "topk", "compress_ratio": 0.01})
    grace.topk(ratio=0.01)
    """
    if not isinstance(params, Mapping):
        raise ConfigError(
            f"params={params!r} must be a dictionary, such as {{'compressor': 'topk'}}; for a text use grace.parse."
        )
    settings = dict(params)
    settings.pop("world_size", None)
    name = settings.pop("compressor", None)
    if name is None:
        raise ConfigError(
            f"params={dict(params)!r} names no compressor; add one, such as 'compressor': 'topk'."
        )
    if name in ("topk", "randomk", "adaq", "dgc"):
        settings["ratio"] = settings.pop("compress_ratio", settings.pop("ratio", RATIO))
    return build(name, **{key: value for key, value in settings.items() if value is not None})
