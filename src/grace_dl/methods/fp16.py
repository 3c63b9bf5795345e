"""Half precision on the wire."""

from __future__ import annotations

import torch

from ..compressor.cast import CastCompressor
from ..registry import register


@register(
    "fp16", family="lower precision", bits="16", reference="IEEE 754 binary16", memories=("none", "residual")
)
class FP16Compressor(CastCompressor):
    """Casts to float16; values out of range saturate.

    An all-reduce sums in float16. With `communicator="alltoall"` the sum over ranks is in float32: each rank's values and the
    average are rounded once.
    """

    kind = torch.float16
    largest = 65504.0
