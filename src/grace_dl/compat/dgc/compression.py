"""`DGCCompressor`: the method `grace.dgc` with the original name, defaults and functions."""

from __future__ import annotations

import glob
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...algebra.base import Composition, Method, Single
from ...algebra.compose import by_parameter
from ...algebra.named import build
from ...errors import ConfigError
from ...handle import Handle
from ...kernels.wire import selected
from ...methods.dgc import WARMUP, warmup_ratios
from ...settings import number, whole
from .memory import DGCSGDMemory, unique

LEAST_SAMPLE = 0.01
"""The minimum share of sampled elements, whatever `sample_ratio` is."""

_SETTINGS = (
    *("sample_ratio", "strided_sample", "compress_upper_bound", "compress_lower_bound"),
    *("max_adaptation_iters", "resample", "fp16_values", "int32_indices"),
)
"""Settings with the same names as in the method."""


@dataclass(frozen=True)
class Attributes:
    """Metadata of a parameter to compress."""

    numel: int
    shape: torch.Size
    num_selects: int
    """Number of elements sent at the current ratio."""


class DGCCompressor:
    """Settings of deep gradient compression, as described in `grace.dgc`; `method` is the method to attach.

    compress_ratio: 0.001 by default, as in the paper; above 1 it is the inverse ratio. memory: a
    `DGCSGDMemory`, by default with momentum 0.9.
    warmup_epochs: -1 or 0 for none. warmup_coeff: None goes from 0.25 to the ratio by equal factors; a number is the
    factor between stages; a list gives the ratios (never below compress_ratio).
    warmup_steps: length of a warm-up stage in steps; `warmup_compress_ratio` is then not needed.

    >>> compression = DGCCompressor(0.001, warmup_epochs=5, warmup_coeff=[0.25, 0.063, 0.015, 0.004, 0.001])
    >>> [compression.warmup_compress_ratio(epoch) for epoch in range(6)]
    [0.25, 0.063, 0.015, 0.004, 0.001, 0.001]
    """

    def __init__(
        self,
        compress_ratio: float = 0.001,
        memory: DGCSGDMemory | None = None,
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
        if memory is not None and not isinstance(memory, DGCSGDMemory):
            raise ConfigError(
                f"memory={memory!r} is no DGCSGDMemory: without its error feedback DGC does not converge. Pass "
                "DGCSGDMemory(momentum=0.9), or leave it out."
            )
        self.memory = DGCSGDMemory() if memory is None else memory
        self.base_compress_ratio = self._ratio = _ratio(compress_ratio)
        self.sample_ratio = min(
            1.0, max(LEAST_SAMPLE, number("sample_ratio", sample_ratio, "a share of the elements"))
        )
        self.strided_sample, self.resample = strided_sample, resample
        self.compress_upper_bound, self.compress_lower_bound = compress_upper_bound, compress_lower_bound
        self.max_adaptation_iters = max_adaptation_iters
        self.fp16_values, self.int32_indices = fp16_values, int32_indices
        self.warmup_epochs = max(
            0, whole("warmup_epochs", warmup_epochs, "epochs of warm-up; 0 for none", least=-1)
        )
        self.warmup_coeff = warmup_coeff
        self.warmup_steps = whole(
            "warmup_steps", warmup_steps, "the length of a warm-up stage in steps", least=0
        )
        self.warmup_ratios = self._warmup()
        self._chosen: dict[str, Any] | None = None
        self.warmup_compress_ratio(0)
        for _ in self.method.parts():  # wrong settings are rejected here
            pass

    def _warmup(self) -> list[float]:
        ratio, stages = self.base_compress_ratio, self.warmup_epochs
        if not stages:
            return []
        if self.warmup_coeff is None and stages > 1:
            # As in the paper: a quarter in the first stage, the final ratio in the last.
            first = max(WARMUP, ratio)
            factor = (ratio / first) ** (1 / (stages - 1))
            return [max(first * factor**stage, ratio) for stage in range(stages)]
        return [max(share, ratio) for share in warmup_ratios(ratio, stages, self.warmup_coeff)]

    # The method ---------------------------------------------------------------------------------------

    @property
    def method(self) -> Method:
        """The method to attach; its ratio follows `warmup_compress_ratio`, or the number of steps."""
        return self.method_with()

    def method_with(self, *, seed: int = 0) -> Method:
        """`method` with another seed of its random draws."""
        if not self.warmup_epochs:
            return self._at(self.base_compress_ratio, seed)
        if not self.warmup_steps:
            return ByEpoch(self, seed)
        stages = {"warmup_stages": self.warmup_epochs, "warmup_steps": self.warmup_steps}
        return self._at(self.base_compress_ratio, seed, warmup_coeff=self.warmup_ratios, **stages)

    def _at(self, ratio: float, seed: int, **warmup: Any) -> Method:
        own = {name: getattr(self, name) for name in _SETTINGS}
        settings = {**own, **self.memory.settings, "seed": seed}
        compressed = build("dgc", ratio=ratio, **settings, **warmup)
        if self._chosen is None:
            return compressed
        rules: dict[str, Method] = {glob.escape(name): compressed for name in self._chosen}
        return by_parameter(rules, default=build("dgc", ratio=1.0, **settings))

    # The original interface ----------------------------------------------------------------------------

    @property
    def ratio(self) -> float:
        """The current share of elements sent; with `warmup_steps`, that of the optimizer's last step."""
        if self.warmup_steps:
            return self._ratio_of(max(0, self.memory.steps - 1) // self.warmup_steps)
        return self._ratio

    compress_ratio = ratio

    def warmup_compress_ratio(self, epoch: int) -> float:
        """Start an epoch: use its ratio from the next step on. All ranks must call it between the same steps."""
        self._ratio = self._ratio_of(epoch)
        return self._ratio

    def _ratio_of(self, stage: int) -> float:
        return self.warmup_ratios[stage] if 0 <= stage < len(self.warmup_ratios) else self.base_compress_ratio

    def initialize(self, named_parameters: Iterable[tuple[str, Any]]) -> None:
        """Compress only these parameters (of them, matrices and convolutions); all others are sent dense.

        Call it before the compressor is attached.
        """
        self._chosen = unique(named_parameters)

    @property
    def attributes(self) -> dict[str, Attributes]:
        """Size and number of sent elements of each parameter that `initialize` was given."""
        sizes = {
            name: (p.numel(), p.shape) if isinstance(p, torch.Tensor) else (p[0], torch.Size(p[1]))
            for name, p in (self._chosen or {}).items()
        }
        return {
            name: Attributes(numel, shape, selected(self.ratio, numel))
            for name, (numel, shape) in sizes.items()
        }

    def serve(self, handle: Handle) -> None:
        """Let `memory.state_dict()` read the state of this handle."""
        self.memory.serve(handle)

    def __repr__(self) -> str:
        return f"DGCCompressor({self.base_compress_ratio!r}, {self.memory!r})"


class ByEpoch(Composition):
    """The method of a compressor with warm-up by epochs; state is kept when the ratio changes."""

    def __init__(self, compression: DGCCompressor, seed: int) -> None:
        self._compression = compression
        ratios = dict.fromkeys((*compression.warmup_ratios, compression.base_compress_ratio))
        self._by_ratio = {ratio: compression._at(ratio, seed) for ratio in ratios}

    def resolve(self, name: str, step: int) -> Single:
        return self._by_ratio[self._compression.ratio].resolve(name, step)

    def stage(self, step: int) -> Hashable:
        return self._compression.ratio

    @property
    def methods(self) -> tuple[Method, ...]:
        return tuple(self._by_ratio.values())

    def __str__(self) -> str:
        return f"by_epoch({'; '.join(map(str, self.methods))})"

    __repr__ = __str__


def _ratio(compress_ratio: Any) -> float:
    value = number("compress_ratio", compress_ratio, "the share of elements that is sent")
    if not value > 0:
        raise ConfigError(
            f"compress_ratio={compress_ratio!r} must be positive: the share of elements that is sent, such as 0.001, or the "
            "number of which one is sent, such as 1000."
        )
    return 1 / value if value > 1 else value
