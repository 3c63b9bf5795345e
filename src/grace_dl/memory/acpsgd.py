"""ACP-SGD's state and its one round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from ..compressor.base import Compressor
from ..compressor.lowrank import orthonormalise
from ..key import Key
from ..methods.acpsgd import ACPSGDCompressor
from .base import Pending
from .lowrank import LowRankMemory, LowRankPending, Rounds


class ACPSGDMemory(LowRankMemory):
    """Residual `e` against the local factor, and the averaged factors `p` and `q` (Zhang 2023, algorithm 2).

    A step orthonormalises one factor and replaces the other, so each is computed from the last average of the other.
    """

    def rounds(self, items: Sequence[tuple[Tensor, Key]], compressor: Compressor) -> Rounds:
        method = cast(ACPSGDCompressor, compressor)
        matrices = self.matrices(items, method)
        sides = [method.sends_p(key.step) for _, key in items]
        # A basis of the factor that is not sent: Q when P is sent, P when Q is sent.
        kept = [self.factor(m, "q" if side else "p", method.rank) for m, side in zip(matrices, sides)]
        bases = [rows if side else rows.t().contiguous() for rows, side in zip(orthonormalise(kept), sides)]
        local = [
            self.checked(matrix, matrix.times if side else matrix.transposed_times, basis)
            for matrix, basis, side in zip(matrices, bases, sides)
        ]
        means = yield local
        pending: list[Pending] = []
        for place, (matrix, basis, own, mean) in enumerate(zip(matrices, bases, local, means)):
            if sides[place]:
                payload, sent, new = [mean, basis], [own, basis], {"p": mean.t()}
            else:
                payload, sent, new = [basis, mean], [basis, own], {"q": mean}
            shape = items[place][0].shape
            pending.append(LowRankPending(matrix, method, shape, payload, sent, new))
        return pending
