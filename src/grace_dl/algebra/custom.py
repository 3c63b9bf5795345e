"""Methods built from compressor and memory objects, without registration."""

from __future__ import annotations

import copy

from .. import catalog
from ..communicator.base import Communicator
from ..communicator.state import State
from ..compressor.base import Compressor
from ..errors import ConfigError
from ..memory.base import Memory
from ..registry import parameters
from ..transport import Transport
from .base import Single
from .named import check_dense_below, check_seed, warn_of_divergence


class Custom(Single):
    """A method built from a compressor object and a memory object; equal only to itself.

    >>> import grace_dl as grace
    >>> from grace_dl.methods.topk import TopKCompressor
    >>> grace.custom(TopKCompressor(0.01))
    grace.custom(TopKCompressor(ratio=0.01, value_dtype=None), ResidualMemory(beta=1.0, gamma=1.0))
    """

    def __init__(
        self,
        compressor: Compressor,
        memory: Memory | None = None,
        communicator: str | None = None,
        *,
        seed: int = 0,
        dense_below: int | None = None,
    ) -> None:
        if not isinstance(compressor, Compressor):
            raise ConfigError(
                f"compressor={compressor!r} is no Compressor object; pass one, such as TopKCompressor(0.01), or use a "
                "constructor such as grace.topk(0.01)."
            )
        if memory is not None and not isinstance(memory, Memory):
            raise ConfigError(
                f"memory={memory!r} is no Memory object; pass one, such as ResidualMemory(), or none for the method's own."
            )
        self._info = catalog.info_of(type(compressor))
        name = None if memory is None else catalog.memory_name(memory)
        if memory is None or (name is not None and self._info.memory(name) != name):
            memory = _partner(catalog.memory_for(self._info), compressor)
            name = catalog.memory_name(memory)
        self._compressor, self._memory = compressor, memory
        catalog.check_communicator(self._info, communicator, type(memory))
        self._communicator = communicator
        self._seed, self._dense_below = check_seed(seed), check_dense_below(dense_below)
        warn_of_divergence(self._info, compressor, name)

    def build(
        self, transport: Transport, state: State, way: type[Communicator] | None = None
    ) -> Communicator:
        info = self._info
        own = catalog.communicator_for(info, self._communicator, transport.size, type(self._memory))
        found = own if way is None else catalog.able(way, info)
        memory = copy.deepcopy(self._memory)
        memory.state.clear()
        return found(
            copy.deepcopy(self._compressor),
            memory,
            transport=transport,
            state=state,
            seed=self._seed,
            dense_below=self._info.dense_below if self._dense_below is None else self._dense_below,
            label=str(self),
        )

    def __str__(self) -> str:
        way = self._communicator or ", ".join(name for _, name in catalog.defaults_of(self._info))
        return f"{self._compressor!r} with {self._memory!r} through {way}"

    def __repr__(self) -> str:
        return f"grace.custom({self._compressor!r}, {self._memory!r})"


def _partner(memory: type[Memory], compressor: Compressor) -> Memory:
    """The default memory of a compressor; shared settings are taken from the compressor."""
    shared = compressor.settings()
    return memory(**{p.name: shared[p.name] for p in parameters(memory) if p.name in shared})


def custom(
    compressor: Compressor,
    memory: Memory | None = None,
    communicator: str | None = None,
    *,
    seed: int = 0,
    dense_below: int | None = None,
) -> Single:
    """Build a method from objects: a compressor (registered or not), and optionally a memory and a communicator's name.

    The objects are copied when the method is attached, so a method can be attached to several models.
    """
    return Custom(compressor, memory, communicator, seed=seed, dense_below=dense_below)
