"""Deep gradient compression's selection: what exceeds a threshold estimated from a sample, at most k elements.

Momentum correction, masking and clipping live in `memory/dgc.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .. import kernels
from ..errors import ConfigError
from ..kernels import Correction, Kernels, Source
from ..kernels.check import broken, payload_parts
from ..kernels.wire import Sampling, Sent, index_bytes, selected
from ..key import Key
from ..registry import register
from ..settings import flag, number, whole
from .base import Context, Payload, Spec
from .sparse import IndexedCodec, check_ratio

WARMUP = 0.25
"""The share of the elements sent in the first warm-up stage when only a number of stages is given."""


@functools.lru_cache(4096)
def _parts(values: torch.dtype, k: int, numel: int) -> Spec:
    return ((values, k), (torch.uint8, index_bytes(numel, k)), (torch.int32, 1))


@register(
    "dgc", bits="ratio x (value + coded index)", reference="Lin 2018, ICLR", memories=("dgc", "residual")
)
class DgcCompressor(IndexedCodec):
    """Sends at most k elements above a sampled threshold; pair it with the `dgc` memory.

    compress_ratio: share of the elements sent once the warm-up is over.
    sample_ratio, strided_sample: how many elements are looked at for the threshold, at a stride or drawn at random;
    1 looks at all, which is exact top-k.
    compress_upper_bound, compress_lower_bound, max_adaptation_iters: the threshold is lowered (or, without
    `resample`, raised) by these factors until the number of hits lies within them, at most so many times.
    resample: with more hits than the upper bound allows take the k largest at once. Whatever remains above k hits
    is trimmed by magnitude in any case.
    fp16_values: values travel as float16. int32_indices: accepted for scripts that set it; indices are coded in 9 to 13
    bits, smaller than either width.
    warmup_epochs, warmup_coeff: call `warmup_compress_ratio(epoch)` at the start of an epoch. A number is the factor
    from stage to stage (by default what leads from 0.25 to compress_ratio), a list gives the ratios themselves.
    warmup_steps: steps of a warm-up stage; with it the stages follow by themselves and nothing needs to be called.
    """

    def __init__(
        self,
        compress_ratio: float = 0.3,
        sample_ratio: float = 0.01,
        strided_sample: bool = True,
        compress_upper_bound: float = 1.3,
        compress_lower_bound: float = 0.8,
        max_adaptation_iters: int = 10,
        resample: bool = True,
        fp16_values: bool = False,
        int32_indices: bool = False,
        warmup_epochs: int = 0,
        warmup_coeff: float | Sequence[float] | None = None,
        warmup_steps: int = 0,
    ) -> None:
        super().__init__()
        self.compress_ratio = check_ratio(compress_ratio)
        self.sample_ratio = number(
            "sample_ratio", sample_ratio, "the share of elements looked at", above=0, most=1
        )
        why = "bounds on the number of hits, as multiples of k; 0.8 and 1.3 are usual"
        lower = number("compress_lower_bound", compress_lower_bound, why, above=0, most=1)
        upper = number("compress_upper_bound", compress_upper_bound, why, least=1)
        self.compress_lower_bound, self.compress_upper_bound = lower, upper
        self.strided_sample = flag("strided_sample", strided_sample)
        self.max_adaptation_iters = whole(
            "max_adaptation_iters", max_adaptation_iters, "how often the threshold is adapted", least=0
        )
        self.resample = flag("resample", resample)
        self.fp16_values = flag("fp16_values", fp16_values)
        self.int32_indices = flag("int32_indices", int32_indices)
        self.warmup_epochs = whole(
            "warmup_epochs", warmup_epochs, "stages of the warm-up; 0 is none", least=0
        )
        self.warmup_coeff = list(warmup_coeff) if isinstance(warmup_coeff, (list, tuple)) else warmup_coeff
        self.warmup_steps = whole("warmup_steps", warmup_steps, "steps of a warm-up stage", least=0)
        self._stages = self._warmup()
        self._ratio = self.compress_ratio
        self.warmup_compress_ratio(0)

    # Warm-up ------------------------------------------------------------------------------------------

    def _warmup(self) -> list[float]:
        """The ratios of the warm-up stages (Lin 2018, section 3.3: sparsity rises exponentially)."""
        if self.warmup_epochs == 0:
            return []
        coeff = self.warmup_coeff
        if isinstance(coeff, list):
            if len(coeff) < self.warmup_epochs:
                raise ConfigError(
                    f"warmup_coeff={coeff!r} has {len(coeff)} entries for warmup_epochs={self.warmup_epochs}; give one "
                    "ratio for each stage."
                )
            return [check_ratio(ratio) for ratio in coeff[: self.warmup_epochs]]
        if coeff is None:
            first = max(WARMUP, self.compress_ratio)
            factor = (self.compress_ratio / first) ** (1 / self.warmup_epochs)
        else:
            why = "the ratio is multiplied by it at every stage; a list gives the ratios themselves"
            first = factor = number("warmup_coeff", coeff, why, above=0, below=1)
        return [max(first * factor**stage, self.compress_ratio) for stage in range(self.warmup_epochs)]

    def warmup_compress_ratio(self, epoch: int) -> float:
        """Set the share that is sent in this epoch (on every rank alike), and return it.

        >>> compressor = DgcCompressor(0.001, warmup_epochs=5, warmup_coeff=[0.25, 0.063, 0.015, 0.004, 0.001])
        >>> [compressor.warmup_compress_ratio(epoch) for epoch in (0, 1, 5)]
        [0.25, 0.063, 0.001]
        """
        self._ratio = self._stages[epoch] if epoch < len(self._stages) else self.compress_ratio
        return self._ratio

    @property
    def ratio(self) -> float:
        """The share of the elements sent at present."""
        return self._ratio

    @property
    def phase(self) -> float:
        return self._ratio

    # Method -------------------------------------------------------------------------------------------

    def advance(self, step: int) -> None:
        if self.warmup_steps:
            self.warmup_compress_ratio(step // self.warmup_steps)

    def takes(self, shape: Sequence[int], step: int) -> bool:
        return len(shape) > 1 and self._ratio < 1

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return self._spec(selected(self._ratio, numel), numel, dtype)

    def _spec(self, k: int, numel: int, dtype: torch.dtype) -> Spec:
        return _parts(torch.float16 if self.fp16_values else dtype, k, numel)

    def _sampling(self, numel: int, k: int, key: Key) -> Sampling:
        # Fewer than two expected hits in the sample would make the threshold a matter of luck.
        samples = max(math.ceil(self.sample_ratio * numel), math.ceil(2 * numel / k))
        word, start, stride = key.word(), 0, 0
        if (self.strided_sample or numel >= 1 << 31) and samples < numel:
            stride = numel // samples
            start = word % stride
            samples = (numel - start + stride - 1) // stride
        rank = -(-samples * k // numel)
        bounds = self.compress_lower_bound, self.compress_upper_bound
        return Sampling(rank, samples, start, stride, word, *bounds, self.max_adaptation_iters, self.resample)

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        k = out[0].numel()
        kernel.dgc_encode(source, k, self._sampling(source.x.numel(), k, key), *out)
        return out

    def encode_corrected_(
        self,
        states: Sequence[Correction],
        keys: Sequence[Key],
        momentum: float,
        nesterov: bool,
        outs: Sequence[Payload | None],
    ) -> tuple[list[tuple[Payload, Context]], Iterator[bool]]:
        if not all(state.v.numel() for state in states):
            return super().encode_corrected_(states, keys, momentum, nesterov, outs)
        found, samplings = [], []
        for (_, v, _, _), key, out in zip(states, keys, outs):
            payload = self.allocate(v.numel(), v.dtype, v.device) if out is None else out
            samplings.append(self._sampling(v.numel(), payload[0].numel(), key))
            found.append((payload, Context(v.shape, v.dtype, key)))
        step = kernels.of(states[0].v).dgc_step_
        return found, step(states, momentum, nesterov, samplings, [payload for payload, _ in found])

    def settle_(
        self,
        vs: Sequence[Tensor],
        ms: Sequence[Tensor] | None,
        payloads: Sequence[Payload],
        ctxs: Sequence[Context],
    ) -> None:
        sent = [(values, index, int(count.item())) for values, index, count in payloads]
        kernels.of(vs[0]).dgc_commit_(vs, ms, sent)

    def _sent(self, payload: Payload, numel: int, dtype: torch.dtype) -> Sent:
        places = selected(self._ratio, numel)
        if self._stages and payload and payload[0].numel() != places:
            # The warm-up may have moved on since the payload was made; then its size is that of another stage.
            stages = (selected(ratio, numel) for ratio in (*self._stages, self.compress_ratio))
            places = next((k for k in stages if k == payload[0].numel()), places)
        payload_parts(payload, self._spec(places, numel, dtype))
        count = int(payload[2].item())
        if not 0 <= count <= places:
            raise broken(f"{count} of {places} elements are announced")
        return payload[0], payload[1], count
