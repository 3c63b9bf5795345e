"""ACP-SGD: PowerSGD that alternates between its two factors, with one all-reduce per step."""

from __future__ import annotations

from ..compressor.lowrank import DEFAULT_RANK, LowRankCompressor, from_step
from ..registry import register


@register(
    "acpsgd",
    family="low rank",
    bits="32 rn/nm, 32 rm/nm alternating",
    reference="Zhang 2023, ICDCS",
    memories=("acpsgd",),
    schedule=from_step,
)
class ACPSGDCompressor(LowRankCompressor):
    """Low rank: alternates between averaging P = M orth(Q) and Q = Mᵀ orth(P), one per step; the result is P Qᵀ.

        M = e + g as an n × m matrix
        even steps: B = orth(Q),  P = mean(M B),   result P Bᵀ,  e = M - (M B) Bᵀ
        odd steps:  B = orth(P),  Q = mean(Mᵀ B),  result B Qᵀ,  e = M - B (Mᵀ B)ᵀ

    rank: the number of columns of each factor; 1 to 4 is usual.
    min_compression_rate: tensors whose factors are not this many times smaller are sent uncompressed.
    start_iter: gradients are averaged uncompressed before this step.
    """

    def __init__(self, rank: int = DEFAULT_RANK, min_compression_rate: float = 2) -> None:
        super().__init__(rank, min_compression_rate)

    @staticmethod
    def sends_p(step: int) -> bool:
        """Whether step `step`, counted from 0, sends P (odd steps in the paper, which counts from 1)."""
        return step % 2 == 0

    def _factor_elements(self, n: int, m: int, step: int) -> int:
        return self.rank * (n if self.sends_p(step) else m)
