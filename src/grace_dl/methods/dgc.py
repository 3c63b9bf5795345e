"""Deep gradient compression's selection: at most k elements above a threshold estimated from a sample.

Momentum correction, masking and clipping are in `memory/dgc.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import torch

from .. import kernels
from ..compressor.base import Context, Payload, Spec
from ..compressor.sparse import IndexedCodec, check_ratio
from ..errors import ConfigError
from ..kernels import Correction, Kernels, Source
from ..kernels.check import payload_parts
from ..kernels.faults import Fault
from ..kernels.wire import Sampling, Sent, index_bytes, selected
from ..key import Key
from ..registry import Stages, register
from ..settings import flag, number, whole

WARMUP = 0.25
"""The share of the elements sent in the first warm-up stage if only the number of stages is given."""


@functools.lru_cache(4096)
def _parts(values: torch.dtype, k: int, numel: int) -> Spec:
    return ((values, k), (torch.uint8, index_bytes(numel, k)), (torch.int32, 1))


def warmup_ratios(ratio: float, stages: int, coeff: float | Sequence[float] | None = None) -> list[float]:
    """The ratios of the warm-up stages (Lin 2018, section 3.3: sparsity rises exponentially).

    >>> warmup_ratios(0.001, 3, [0.25, 0.063, 0.015])
    [0.25, 0.063, 0.015]
    """
    if isinstance(coeff, (list, tuple)):
        if len(coeff) < stages:
            raise ConfigError(
                f"warmup_coeff={list(coeff)!r} has {len(coeff)} entries for {stages} stages; give one ratio for each."
            )
        return [check_ratio(share) for share in coeff[:stages]]
    if coeff is None:
        first = max(WARMUP, ratio)
        factor = (ratio / first) ** (1 / stages)
    else:
        why = "the ratio is multiplied by it at every stage; a list gives the ratios themselves"
        first = factor = number("warmup_coeff", coeff, why, above=0, below=1)
    return [max(first * factor**stage, ratio) for stage in range(stages)]


def warmup(
    ratio: float = 0.001,
    warmup_stages: int = 0,
    warmup_steps: int = 0,
    warmup_coeff: float | Sequence[float] | None = None,
) -> Stages:
    """The stages of a warm-up, each `warmup_steps` steps long."""
    whole("warmup_stages", warmup_stages, "the number of warm-up stages; 0 for no warm-up", least=0)
    whole("warmup_steps", warmup_steps, "the length of a warm-up stage in steps", least=0)
    if bool(warmup_stages) != bool(warmup_steps):
        raise ConfigError(
            f"warmup_stages={warmup_stages} and warmup_steps={warmup_steps} go together: stages, and steps of each."
        )
    if not warmup_stages:
        return ()
    ratios = [*warmup_ratios(check_ratio(ratio), warmup_stages, warmup_coeff), ratio]
    return tuple((stage * warmup_steps, {"ratio": share}) for stage, share in enumerate(ratios))


@register(
    "dgc",
    family="sparsifier",
    bits="ratio x (value + coded index)",
    reference="Lin 2018, ICLR",
    memories=("dgc", "residual"),
    schedule=warmup,
    communicator={1: "allgather", 5: "sparse_allreduce"},
)
class DgcCompressor(IndexedCodec):
    """Sends at most k elements above a sampled threshold; pair it with the `dgc` memory.

        S = elements with |v| ≥ t, at most k;  t is estimated from a sample
        Q(v) = v in S, else 0

    ratio: share of the elements sent, once the warm-up is over.
    sample_ratio, strided_sample: the share of elements sampled for the threshold, at a stride or at random;
    1 samples all, which is exact top-k.
    compress_upper_bound, compress_lower_bound, max_adaptation_iters: the threshold is lowered (or, without
    `resample`, raised) by these factors until the number of hits is within the bounds, at most this many times.
    resample: if there are more hits than the upper bound allows, take the k largest directly. More than k hits
    are always trimmed by magnitude.
    fp16_values: send values as float16.
    int32_indices: accepted for compatibility; indices are always coded in 9 to 13 bits.
    warmup_stages, warmup_steps: number and length in steps of the stages from a quarter of the elements to `ratio`.
    warmup_coeff: the factor between the ratios of two stages, or a list with the ratio of each stage.
    """

    def __init__(
        self,
        ratio: float = 0.001,
        sample_ratio: float = 0.01,
        strided_sample: bool = True,
        compress_upper_bound: float = 1.3,
        compress_lower_bound: float = 0.8,
        max_adaptation_iters: int = 10,
        resample: bool = True,
        fp16_values: bool = False,
        int32_indices: bool = False,
    ) -> None:
        super().__init__()
        self.ratio = check_ratio(ratio)
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

    def takes(self, shape: Sequence[int]) -> bool:
        return len(shape) > 1 and self.ratio < 1

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return _parts(torch.float16 if self.fp16_values else dtype, selected(self.ratio, numel), numel)

    def _sampling(self, numel: int, k: int, key: Key) -> Sampling:
        # With fewer than two expected hits in the sample the threshold would be unreliable.
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
        for (_, v, *_), key, out in zip(states, keys, outs):
            payload = self.allocate(v.numel(), v.dtype, v.device) if out is None else out
            samplings.append(self._sampling(v.numel(), payload[0].numel(), key))
            found.append((payload, Context(v.shape, v.dtype, key)))
        step = kernels.of(states[0].v).dgc_step_
        return found, step(states, momentum, nesterov, samplings, [payload for payload, _ in found])

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        values, index, count = payload
        return kernel.check_sparse(values, index, ctx.numel, most, count)

    def _sent(self, payload: Payload, numel: int, dtype: torch.dtype) -> Sent:
        payload_parts(payload, self.spec(numel, dtype))
        values, index, count = payload
        return values, index, count
