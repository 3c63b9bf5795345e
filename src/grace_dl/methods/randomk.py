"""Random-k: a few elements at indices that all ranks share, so that only values are sent and payloads can be summed."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Context, Payload, Spec
from ..compressor.sparse import SparseCodec, check_ratio
from ..errors import UnsupportedError
from ..kernels import Kernels, Source
from ..kernels.faults import Fault
from ..kernels.wire import selected
from ..key import Key
from ..registry import register
from ..settings import flag


@register(
    "randomk",
    family="sparsifier",
    bits="32 x ratio",
    reference="Stich 2018, NeurIPS",
    memories=("none", "residual"),
)
class RandomKCompressor(SparseCodec):
    """Sends the values at k random indices, which are the same on every rank, so payloads can be summed.

        S = one random index from each of k strata, the same on all ranks
        Q(x) = x in S, else 0;  scaled: |stratum| · x in S, which makes E Q(x) = x

    The tensor is split into k strata whose sizes differ by at most one, and one index is drawn in each. Every element
    is as likely as with k draws without replacement; the variance is lower, indices are sorted and distinct at O(k)
    cost, and memory is accessed in order.

    ratio: share of the elements sent.
    scaled: multiply each value by its stratum's size, which makes the estimate unbiased. Use it without a memory;
    with error feedback it must be False, or the residual diverges. None: chosen by the memory in use.
    """

    sums = True
    biased = False

    def __init__(self, ratio: float = 0.01, scaled: bool | None = None) -> None:
        super().__init__()
        self.ratio = check_ratio(ratio)
        self.scaled = None if scaled is None else flag("scaled", scaled)

    def paired(self, feedback: bool) -> RandomKCompressor:
        if self.scaled is not None:
            return self
        decided = copy.copy(self)
        decided.scaled = not feedback
        return decided

    def spec(self, numel: int, dtype: torch.dtype) -> Spec:
        return ((dtype, selected(self.ratio, numel)),)

    def _run(self, kernel: Kernels, source: Source, key: Key, out: Payload) -> Payload:
        check_size(source.x.numel(), out[0].numel())
        scaled = source.leave == "input" if self.scaled is None else self.scaled
        kernel.randomk_encode(source, key.shared_word(), scaled, out[0])
        return out

    def _faults(self, kernel: Kernels, payload: Payload, ctx: Context, most: float) -> Fault:
        return kernel.check_values(payload[0], most)

    def _add(self, out: Tensor, payload: Payload, ctx: Context, alpha: float) -> None:
        check_size(out.numel(), payload[0].numel())
        kernels.of(out).randomk_add(out, payload[0], ctx.key.shared_word(), alpha)


def check_size(d: int, k: int) -> None:
    """Products of positions and sizes are computed in 64 bits."""
    if d * (k + 1) >= 1 << 62:
        raise UnsupportedError(
            f"random-k cannot cut {d} elements into {k} strata in 64-bit integers; split the tensor."
        )
