"""ACP-SGD's state and its one round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from ..compressor.acpsgd import ACPSGDCompressor
from ..compressor.base import Context
from ..compressor.lowrank import LowRankCompressor, orthonormalise, restarted
from ..key import Key
from .base import Pending
from .lowrank import LowRankMemory, LowRankPending, Rounds, finite


class ACPSGDMemory(LowRankMemory):
    """Residual `e` against the local factor, and the averaged factors `p` and `q` (Zhang 2023, algorithm 2).

    A step needs one factor orthonormalised and replaces the other, so each is made of the other's last average.
    """

    def _factor_rounds(
        self, items: Sequence[tuple[Tensor, Key]], matrices: Sequence[Tensor], method: LowRankCompressor
    ) -> Rounds:
        acp = cast(ACPSGDCompressor, method)
        keys = [key for _, key in items]
        sides = [acp.sends_p(key.step) for key in keys]
        bases = self._bases(matrices, keys, sides, method.rank)
        local = [
            torch.mm(m, basis) if side else torch.mm(basis.t(), m)
            for m, basis, side in zip(matrices, bases, sides)
        ]
        means = yield local
        pending: list[Pending] = []
        for (grad, key), side, basis, own, mean, whole in zip(
            items, sides, bases, local, means, finite(means)
        ):
            pending.append(
                LowRankPending(
                    key,
                    method,
                    grad,
                    [mean, basis.t()] if side else [basis, mean],
                    Context(grad.shape, grad.dtype, key),
                    sent=[own, basis.t()] if side else [basis, own],
                    factors={"p": mean.t()} if side else {"q": mean},
                    finite=whole,
                )
            )
        return pending

    def _bases(
        self, matrices: Sequence[Tensor], keys: Sequence[Key], sides: Sequence[bool], rank: int
    ) -> list[Tensor]:
        """Orthonormal columns of the factor that is not sent: Q where P is, P where Q is."""
        warm = [
            self.factor(key, "q" if side else "p", rank, m.shape[1] if side else m.shape[0], like=m)
            for m, key, side in zip(matrices, keys, sides)
        ]
        return orthonormalise([f.t() for f in restarted(warm, keys, "basis")])
