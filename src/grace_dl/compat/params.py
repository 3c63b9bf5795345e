"""`grace_from_params`: the original GRACE's dictionary of settings."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from .. import catalog
from ..algebra.named import OPTIONS, Named, build
from ..communicator.state import State
from ..errors import ConfigError
from ..registry import unknown
from ..transport.local import LocalTransport
from . import compressors
from .communicators import COMMUNICATORS, Communicator
from .memories import reject_clipping

RATIO = 0.3
"""The original's default for methods that send a share of the elements."""

ALIASES = {"natural_cuda": "natural", "qsgd_cuda": "qsgd"}

KNOWN = (
    *(
        "compressor",
        "memory",
        "communicator",
        "world_size",
        "compress_ratio",
        "lr",
        "quantum_num",
        "bucket_size",
    ),
    *("momentum", "threshold", "kernel", "error_bound", "quantiles", "momentum_factor", "gradient_clipping"),
    "compress_rank",
)
"""Keys of the original. Scripts use one dictionary for all methods, so keys of other methods are ignored."""


def grace_from_params(params: Mapping[str, Any]) -> Communicator:
    """The communicator for a dictionary of settings: `compressor`, `memory`, `communicator`, and settings of each.

    Memory and communicator default to those of the method.

    >>> grace_from_params({"compressor": "topk", "memory": "residual", "communicator": "allgather"}).method
    grace.topk(ratio=0.3, communicator='allgather')
    """
    method = method_from_params(params)
    core = method.build(LocalTransport(), State())
    kind = COMMUNICATORS[core.name]
    return kind.carrying(method, core.compressor, core.memory, params.get("world_size"))


def tensorflow_grace_from_params(params: Mapping[str, Any]) -> Communicator:
    """`grace_from_params` of the original for TensorFlow, whose PowerSGD has a `momentum_factor`."""
    if isinstance(params, Mapping) and params.get("compressor") == "powersgd":
        compressors.reject_momentum(params.get("momentum_factor"))
    return grace_from_params(params)


def method_from_params(params: Mapping[str, Any]) -> Named:
    """The method for a dictionary of settings.

    >>> method_from_params({"compressor": "topk", "compress_ratio": 0.01})
    grace.topk(ratio=0.01)
    """
    if not isinstance(params, Mapping):
        raise ConfigError(
            f"params={params!r} must be a dictionary, such as {{'compressor': 'topk'}}; for a text use grace.parse."
        )
    given = {key: value for key, value in params.items() if value is not None}
    if "compressor" not in given:
        for key in given:
            if difflib.get_close_matches(str(key), ["compressor"], cutoff=0.8):
                _check_key(key, KNOWN)
        raise ConfigError(
            f"params={dict(params)!r} names no compressor; add one, such as 'compressor': 'topk'."
        )
    name = given.pop("compressor")
    info = catalog.info(ALIASES.get(name, name) if isinstance(name, str) else name)
    settings = _translated(info.name, given)
    known = (*catalog.settings_of(info, settings.get("memory")), *(option.name for option in OPTIONS))
    for key in settings:
        _check_key(key, (*known, *KNOWN))
    way = settings.get("communicator")
    if catalog.defaults_of(info) == ((1, way),) or (
        info.cls.multi_round and way in ("allgather", "broadcast")
    ):
        del settings["communicator"]  # the low-rank method's own; in the original it ran inside `compress`
    return build(info.name, **{key: value for key, value in settings.items() if key in known})


def _translated(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings to the names and units used here, with the original's defaults where those differ."""
    settings = dict(given)
    if name in ("topk", "randomk", "adaq", "dgc"):
        settings.setdefault("ratio", settings.pop("compress_ratio", RATIO))
    if name == "topk":
        compressors.TopKCompressor(settings["ratio"], settings.pop("kernel", "torch"))
    if name == "powersgd":
        settings.setdefault("rank", settings.pop("compress_rank", compressors.RANK))
    if name == "inceptionn" and "error_bound" in settings:
        settings["error_bound"] = compressors.inceptionn_bound(settings["error_bound"])
    if name == "dgc" and isinstance(settings.get("gradient_clipping"), bool):
        reject_clipping(settings.pop("gradient_clipping"))
    return settings


def _check_key(key: Any, known: tuple[str, ...]) -> None:
    if key not in known:
        raise unknown("key", key, dict.fromkeys(known))
