"""PowerSGD's state and its two rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from ..compressor.base import Compressor
from ..compressor.lowrank import orthonormalise, warm
from ..key import Key
from ..methods.powersgd import PowerSGDCompressor
from .lowrank import LowRankMemory, LowRankPending, Rounds


class PowerSGDMemory(LowRankMemory):
    """Residual `e` and the warm-started factor `q` (Vogels 2019, algorithms 1 and 2).

    P times this rank's own part of Q is subtracted from the residual. The paper subtracts its average over ranks, the
    result. Both send the same, but in the paper's form the differences between ranks stay in their residuals and grow
    without bound, which is harmless only as long as nothing but their average is used.
    """

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
            else:
                means = yield [self.checked(matrix, matrix.times, q) for matrix, q in zip(matrices, qs)]
            ps = [rows.t().contiguous() for rows in orthonormalise([p.t() for p in means])]
            local = [matrix.transposed_times(p) for matrix, p in zip(matrices, ps)]
            qs = yield local
        return [
            LowRankPending(matrix, method, grad.shape, [p, q], [p, own], {"q": q})
            for matrix, (grad, _), p, q, own in zip(matrices, items, ps, qs, local)
        ]
