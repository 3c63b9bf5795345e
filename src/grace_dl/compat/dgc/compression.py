"""`DGCCompressor`: the core's DGC under the name, defaults and methods that DGC's users know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..communicator.allgather import Allgather
from ..compressor.dgc import DgcCompressor
from ..errors import ConfigError
from ..kernels.wire import selected
from ..memory.base import Memory
from ..pipeline.bucket import Bucket, Segment
from ..registry import DENSE_BELOW
from ..transport import Transport
from .memory import DGCSGDMemory, unique


@dataclass(frozen=True)
class Attributes:
    """What is known of a parameter before it is compressed."""

    numel: int
    shape: torch.Size
    num_selects: int
    """Elements that are sent at the present ratio."""


class DGCCompressor(DgcCompressor):
    """Deep gradient compression; settings as `grace_dl.compressor.dgc.DgcCompressor` explains them.

    compress_ratio: 0.001 by default, as in the paper. memory: a `DGCSGDMemory`, one with momentum 0.9 if not given.
    warmup_epochs: -1 or 0 for none. warmup_coeff: None leads from 0.25 to the ratio in equal factors; a number is the factor
    from stage to stage; a list gives the ratios (never below compress_ratio).
    warmup_steps: length of a warm-up stage in steps; then nothing needs to be called.

    >>> compression = DGCCompressor(0.001, warmup_epochs=5, warmup_coeff=[0.25, 0.063, 0.015, 0.004, 0.001])
    >>> [compression.warmup_compress_ratio(epoch) for epoch in range(6)]
    [0.25, 0.063, 0.015, 0.004, 0.001, 0.001]
    """

    def __init__(
        self,
        compress_ratio: float = 0.001,
        memory: Memory | None = None,
        sample_ratio: float = 0.01,
        strided_sample: bool = True,
        compress_upper_bound: float = 1.3,
        compress_lower_bound: float = 0.8,
        max_adaptation_iters: int = 10,
        resample: bool = True,
        fp16_values: bool = False,
        int32_indices: bool = False,
        warmup_epochs: int = -1,
        warmup_coeff: float | Sequence[float] | None = None,
        warmup_steps: int = 0,
    ) -> None:
        if memory is not None and not isinstance(memory, Memory):
            raise ConfigError(
                f"memory={memory!r} is no memory object; pass DGCSGDMemory(momentum=0.9), or leave it out."
            )
        self._memory = DGCSGDMemory() if memory is None else memory
        self._furthest = 0
        super().__init__(
            compress_ratio,
            sample_ratio,
            strided_sample,
            compress_upper_bound,
            compress_lower_bound,
            max_adaptation_iters,
            resample,
            fp16_values,
            int32_indices,
            max(0, warmup_epochs) if isinstance(warmup_epochs, int) else warmup_epochs,
            warmup_coeff,
            warmup_steps,
        )
        self._named: dict[str, Tensor] | None = None

    @property
    def memory(self) -> Memory:
        """The memory that goes with this compressor."""
        return self._memory

    def _warmup(self) -> list[float]:
        if isinstance(self.warmup_coeff, list):
            return [max(ratio, self.compress_ratio) for ratio in super()._warmup()]
        if self.warmup_coeff is None and self.warmup_epochs > 1:
            # As the paper does: a quarter in the first stage, the final ratio already in the last.
            first = max(0.25, self.compress_ratio)
            factor = (self.compress_ratio / first) ** (1 / (self.warmup_epochs - 1))
            return [max(first * factor**stage, self.compress_ratio) for stage in range(self.warmup_epochs)]
        return super()._warmup()

    # As DGC's users call it ---------------------------------------------------------------------------

    def initialize(self, named_parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Compress these parameters only (of them the matrices and convolutions); all others travel dense."""
        self._named = unique(named_parameters)

    @property
    def attributes(self) -> dict[str, Attributes]:
        """Size and number of sent elements of each parameter that `initialize` was given."""
        return {
            name: Attributes(p.numel(), p.shape, selected(self.ratio, p.numel()))
            for name, p in (self._named or {}).items()
        }

    def covers(self, name: str) -> bool:
        """Whether a parameter is among those to be compressed."""
        return self._named is None or name in self._named

    def advance(self, step: int) -> None:
        # Buckets that were unused for a while lag in steps; the warm-up follows the furthest.
        self._furthest = max(self._furthest, step)
        super().advance(self._furthest)

    def communicator(
        self, *, seed: int = 0, dense_below: int = DENSE_BELOW, transport: Transport | None = None
    ) -> DGCAllgather:
        """This compressor and its memory, ready to `attach` to a DDP model or an optimizer."""
        return DGCAllgather(self, self._memory, seed=seed, dense_below=dense_below, transport=transport)


class DGCAllgather(Allgather):
    """All-gather that leaves parameters uncompressed which `DGCCompressor.initialize` was not given."""

    def _is_dense(self, segment: Segment, bucket: Bucket) -> bool:
        dense = super()._is_dense(segment, bucket)
        return dense or not covers(self.compressor, segment.name)


def covers(compressor: Any, name: str) -> bool:
    return not isinstance(compressor, DGCCompressor) or compressor.covers(name)
