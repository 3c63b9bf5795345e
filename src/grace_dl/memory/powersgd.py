"""PowerSGD's state and its two rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from ..compressor.base import Compressor, Context
from ..compressor.lowrank import LowRankCompressor, orthonormalise, restarted
from ..compressor.powersgd import PowerSGDCompressor
from ..key import Key
from .lowrank import LowRankMemory, LowRankPending, Rounds, finite


class PowerSGDMemory(LowRankMemory):
    """Residual `e` against the averaged result, and the warm-started factor `q` (Vogels 2019, algorithms 1 and 2)."""

    def rounds_per_step(self, compressor: Compressor) -> int:
        return 2 * cast(PowerSGDCompressor, compressor).num_iters_per_step

    def _factor_rounds(
        self, items: Sequence[tuple[Tensor, Key]], matrices: Sequence[Tensor], method: LowRankCompressor
    ) -> Rounds:
        iterations = cast(PowerSGDCompressor, method).num_iters_per_step
        keys = [key for _, key in items]
        qs = [self.factor(key, "q", method.rank, m.shape[1], like=m) for m, key in zip(matrices, keys)]
        for _ in range(iterations):
            qs = restarted(qs, keys, "q")
            ps = orthonormalise((yield [torch.mm(m, q.t()) for m, q in zip(matrices, qs)]))
            qs = yield [torch.mm(p.t(), m) for m, p in zip(matrices, ps)]
        return [
            LowRankPending(
                key,
                method,
                grad,
                [p, q],
                Context(grad.shape, grad.dtype, key),
                sent=[p, q],
                factors={"q": q},
                finite=whole,
            )
            for (grad, key), p, q, whole in zip(items, ps, qs, finite(qs))
        ]
