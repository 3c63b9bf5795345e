"""PowerSGD's state and its two rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from ..compressor.base import Compressor
from ..compressor.lowrank import orthonormalise, warm
from ..compressor.powersgd import PowerSGDCompressor
from ..key import Key
from .lowrank import LowRankMemory, LowRankPending, Rounds, finite


class PowerSGDMemory(LowRankMemory):
    """Residual `e` against the averaged result, and the warm-started factor `q` (Vogels 2019, algorithms 1 and 2)."""

    def rounds_per_step(self, compressor: Compressor) -> int:
        return 2 * cast(PowerSGDCompressor, compressor).num_iters_per_step

    def rounds(self, items: Sequence[tuple[Tensor, Key]], compressor: Compressor) -> Rounds:
        method = cast(PowerSGDCompressor, compressor)
        matrices = self.matrices(items, method)
        qs = [self.factor(matrix, "q", method.rank) for matrix in matrices]
        for iteration in range(method.num_iters_per_step):
            if iteration:
                qs = [warm(q, key, "q") for q, (_, key) in zip(qs, items)]
            means = yield [matrix.times(q) for matrix, q in zip(matrices, qs)]
            ps = [rows.t().contiguous() for rows in orthonormalise([p.t() for p in means])]
            qs = yield [matrix.transposed_times(p) for matrix, p in zip(matrices, ps)]
        return [
            LowRankPending(matrix, method, grad.shape, [p, q], [p, q], {"q": q}, whole)
            for matrix, (grad, _), p, q, whole in zip(matrices, items, ps, qs, finite(qs))
        ]
