"""QSGD: stochastic quantisation relative to the norm of a bucket."""

from __future__ import annotations

import math

from ..compressor.blocks import BlockCompressor
from ..errors import ConfigError
from ..registry import register


@register("qsgd", family="quantiser", bits="8.3", reference="Alistarh 2017, NeurIPS")
class QSGDCompressor(BlockCompressor):
    """Levels of a bucket's norm, stochastically rounded: norm * sign * xi / quantum_num."""

    def __init__(self, quantum_num: int = 127, bucket_size: int = 128, norm: str = "l2") -> None:
        super().__init__()
        if not (isinstance(quantum_num, int) and 1 <= quantum_num <= 32767):
            raise ConfigError(
                f"quantum_num={quantum_num!r} must be a whole number from 1 to 32767 (a code takes at most 16 bits); "
                "127 gives one byte an element."
            )
        if not (isinstance(bucket_size, int) and bucket_size >= 1):
            raise ConfigError(
                f"bucket_size={bucket_size!r} must be a whole number of at least 1; 128 is customary."
            )
        if norm not in ("l2", "max"):
            raise ConfigError(f"norm={norm!r} is unknown; choose 'l2' (as in the paper) or 'max'.")
        self.quantum_num = quantum_num
        self.bucket_size = bucket_size
        self.norm = norm  # type: ignore[misc]

    @property
    def block(self) -> int:  # type: ignore[override]
        return self.bucket_size

    @property
    def levels(self) -> int:  # type: ignore[override]
        return self.quantum_num

    @property
    def variance(self) -> float:
        """The bound on E‖Q(x) - x‖² / ‖x‖² (Alistarh et al. 2017, lemma 3.1; 1/4 level² an element for "max")."""
        s, d = self.quantum_num, self.bucket_size
        return min(d / s**2, math.sqrt(d) / s) if self.norm == "l2" else d / (4 * s**2)

    @property
    def warn(self) -> dict[str, str]:
        """Memories that go wrong with these settings: error feedback, where the error may exceed the gradient."""
        if self.variance < 1:
            return {}
        return {
            "residual": f"the rounding error may be {self.variance:.3g} times the gradient, so that feeding it back "
            "diverges; raise quantum_num, lower bucket_size, or use no memory."
        }
