"""bfloat16 on the wire."""

from __future__ import annotations

import torch

from ..compressor.cast import CastCompressor
from ..registry import register


@register(
    "bf16",
    family="lower precision",
    bits="16",
    reference="Kalamkar 2019, arXiv:1905.12322",
    memories=("none", "residual"),
)
class BF16Compressor(CastCompressor):
    """Casts to bfloat16: the range of float32 with 8 bits of precision.

    An all-reduce sums in bfloat16. With `communicator="alltoall"` the sum over ranks is in float32: each rank's values and
    the average are rounded once.
    """

    kind = torch.bfloat16
    largest = float(torch.finfo(torch.bfloat16).max)
