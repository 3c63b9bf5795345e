"""QSGD: stochastic quantisation relative to the norm of a bucket."""

from __future__ import annotations

import math

from ..compressor.blocks import BlockCompressor
from ..registry import register
from ..settings import choice, whole


@register("qsgd", family="quantiser", bits="8.3", reference="Alistarh 2017, NeurIPS")
class QSGDCompressor(BlockCompressor):
    """Levels of a bucket's norm, stochastically rounded: norm * sign * xi / quantum_num.

        s = ‖bucket‖ / quantum_num,  Q(x) = s · sign(x) · ⌊|x| / s + u⌋,  u uniform in [0, 1)

    quantum_num: the number of levels between zero and the norm; 127 takes one byte per element.
    bucket_size: elements that share a norm.
    norm: "l2", as in the paper, or "max", which has a smaller error.
    """

    def __init__(self, quantum_num: int = 127, bucket_size: int = 128, norm: str = "l2") -> None:
        super().__init__()
        why = "levels of a code, which takes at most 16 bits; 127 gives one byte an element"
        self.quantum_num = whole("quantum_num", quantum_num, why, least=1, most=32767)
        self.bucket_size = whole(
            "bucket_size", bucket_size, "elements that share a norm; 128 is usual", least=1
        )
        self.norm = choice("norm", norm, ("l2", "max"), "the scale of a bucket; the paper's is 'l2'")  # type: ignore[misc]

    @property
    def block(self) -> int:  # type: ignore[override]
        return self.bucket_size

    @property
    def levels(self) -> int:  # type: ignore[override]
        return self.quantum_num

    @property
    def variance(self) -> float:
        """The bound on E‖Q(x) - x‖² / ‖x‖² (Alistarh et al. 2017, lemma 3.1; 1/4 level² per element for "max")."""
        s, d = self.quantum_num, self.bucket_size
        return min(d / s**2, math.sqrt(d) / s) if self.norm == "l2" else d / (4 * s**2)

    @property
    def warn(self) -> dict[str, str]:
        """Memories that diverge with these settings: error feedback, if the error may exceed the gradient."""
        if self.variance < 1:
            return {}
        return {
            "residual": f"the rounding error may be {self.variance:.3g} times the gradient, so that feeding it back "
            "diverges; raise quantum_num, lower bucket_size, or use no memory."
        }
