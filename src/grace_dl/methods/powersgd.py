"""PowerSGD: one power iteration per training step."""

from __future__ import annotations

from ..compressor.lowrank import DEFAULT_RANK, LowRankCompressor, from_step
from ..registry import register
from ..settings import whole


@register(
    "powersgd",
    family="low rank",
    bits="32 r(n+m)/nm",
    reference="Vogels 2019, NeurIPS",
    memories=("powersgd",),
    schedule=from_step,
)
class PowerSGDCompressor(LowRankCompressor):
    """Low rank: averages P = M Q, orthonormalises it, averages Q = Mᵀ P; the result is P Qᵀ.

        M = e + g as an n × m matrix
        P = orth(mean(M Q)),  Q = mean(Mᵀ P),  result P Qᵀ,  e = M - P (Mᵀ P)ᵀ

    rank: the number of columns of each factor; 1 to 4 is usual.
    min_compression_rate: tensors whose factors are not this many times smaller are sent uncompressed.
    num_iters_per_step: power iterations per step, two all-reduces each.
    start_iter: gradients are averaged uncompressed before this step.
    """

    def __init__(
        self,
        rank: int = DEFAULT_RANK,
        min_compression_rate: float = 2,
        num_iters_per_step: int = 1,
    ) -> None:
        super().__init__(rank, min_compression_rate)
        why = "power iterations a step, two all-reduces each"
        self.num_iters_per_step = whole("num_iters_per_step", num_iters_per_step, why, least=1)

    def _factor_elements(self, n: int, m: int, step: int) -> int:
        return self.num_iters_per_step * self.rank * (n + m)
