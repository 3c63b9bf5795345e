"""Compiled decoders for all tensors of a bucket and all ranks."""

from __future__ import annotations

from ..reference.combine import BucketDecoders
from .blocks import block_add
from .cast import fp8_add
from .signs import onebit_add, scaled_sign_add, sign_vote
from .tables import natural_add
from .ternary import ternary_add

__all__ = [
    "block_combine_",
    "fp8_combine_",
    "natural_combine_",
    "onebit_combine_",
    "scaled_sign_combine_",
    "sign_combine_",
    "ternary_combine_",
]

_decoders = BucketDecoders(
    block_add, fp8_add, natural_add, onebit_add, scaled_sign_add, ternary_add, sign_vote
)
block_combine_ = _decoders.block_combine_
fp8_combine_ = _decoders.fp8_combine_
natural_combine_ = _decoders.natural_combine_
onebit_combine_ = _decoders.onebit_combine_
scaled_sign_combine_ = _decoders.scaled_sign_combine_
sign_combine_ = _decoders.sign_combine_
ternary_combine_ = _decoders.ternary_combine_
