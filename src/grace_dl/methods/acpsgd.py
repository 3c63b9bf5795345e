"""ACP-SGD: PowerSGD with its two factors updated in turn, one all-reduce a step."""

from __future__ import annotations

from ..compressor.lowrank import DEFAULT_RANK, LowRankCompressor, from_step
from ..registry import register


@register(
    "acpsgd",
    family="low rank",
    bits="32 rn/nm, 32 rm/nm in turn",
    reference="Zhang 2023, ICDCS",
    memories=("acpsgd",),
    schedule=from_step,
)
class ACPSGDCompressor(LowRankCompressor):
    """Low rank: averages P = M orth(Q) and Q = Mᵀ orth(P) in turn, one a step; the result is P Qᵀ.

    rank: the number of columns of each factor; 1 to 4 is usual.
    min_compression_rate: tensors whose factors are not this many times smaller travel uncompressed.
    start_iter: gradients are averaged uncompressed before this step.
    """

    def __init__(self, rank: int = DEFAULT_RANK, min_compression_rate: float = 2) -> None:
        super().__init__(rank, min_compression_rate)

    @staticmethod
    def sends_p(step: int) -> bool:
        """Whether step `step`, counted from 0, sends P (the paper counts from 1 and calls these odd)."""
        return step % 2 == 0

    def _factor_elements(self, n: int, m: int, step: int) -> int:
        return self.rank * (n if self.sends_p(step) else m)
