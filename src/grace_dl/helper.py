"""From a dictionary of settings to a communicator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import registry
from .communicator.base import Communicator
from .errors import ConfigError
from .transport import Transport


def grace_from_params(params: Mapping[str, Any], transport: Transport | None = None) -> Communicator:
    """Build a communicator with its compressor and memory from their names and settings.

    Only `compressor` is needed: the memory and communicator that suit it are known. Other keys are settings of the
    three; an unknown one is an error.

    >>> grace_from_params({"compressor": "topk", "compress_ratio": 0.01})
    Allgather(TopKCompressor(compress_ratio=0.01, value_dtype=None), ResidualMemory(beta=1.0, gamma=1.0))
    """
    settings = dict(params)
    name = settings.pop("compressor", "none")
    record = registry.method(name)
    memory_name = settings.pop("memory", None)
    kind = registry.communicator_class(settings.pop("communicator", None) or record.communicator)
    if memory_name == "none" and "none" not in record.memories:
        memory_name = None
    memory_kind = registry.memory_class(memory_name or record.memories[0])

    of_compressor = {p.name for p in record.parameters}
    of_memory = {p.name for p in registry.parameters(memory_kind)}
    of_communicator = {"world_size", "seed", "dense_below"}
    known = of_compressor | of_memory | of_communicator
    for key in settings:
        if key not in known:
            error = registry.unknown("setting", key, sorted(known))
            raise ConfigError(f"{error} (settings of {name} with memory {memory_name or record.memories[0]})")

    def chosen(names: set[str]) -> dict[str, Any]:
        return {key: value for key, value in settings.items() if key in names}

    compressor = record.cls(**chosen(of_compressor))
    memory = memory_kind(**chosen(of_memory))
    return kind(compressor, memory, transport=transport, **chosen(of_communicator))
