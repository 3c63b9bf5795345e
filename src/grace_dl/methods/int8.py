"""Eight-bit integers with a scale per block."""

from __future__ import annotations

from ..compressor.blocks import BlockCompressor
from ..registry import register


@register(
    "int8",
    family="lower precision",
    bits="8.1",
    reference="Dettmers 2022, ICLR (blockwise)",
)
class Int8Compressor(BlockCompressor):
    """Integers of 8 bits, stochastically rounded, with the absmax of each block of 256 as its scale.

        s = max|x| / 127 for each block,  Q(x) = s · sign(x) · ⌊|x| / s + u⌋

    u is uniform in [0, 1), so that rounding is unbiased. Every block sends its scale s.
    """

    block = 256
    levels = 127
