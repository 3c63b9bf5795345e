"""AdaQ's two-sided selection (Dryden 2016), each side decoded to its mean; plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..check import broken
from ..source import Source
from ..wire import selected
from .basic import formed
from .bits import pack, unpack_checked
from .indices import decode_indices, encode_indices
from .reduce import tree_sum
from .sparse import largest, magnitudes

__all__ = ["adaq_add", "adaq_encode"]


def adaq_encode(
    source: Source, ratio: float, slots: int, means: Tensor, counts: Tensor, index: Tensor, signs: Tensor
) -> None:
    """The largest share of the positive and of the negative elements, each as its mean (Dryden 2016, section 3).

    Sums run over the whole tensor, with zeros for unsent elements, so that they do not depend on the selection.
    """
    v, ef = formed(source)
    keys = magnitudes(v)
    below = v.signbit()
    marks = torch.zeros_like(below)
    for side, of_side in enumerate((~below & (keys > 0), below & (keys > 0))):
        members = of_side.nonzero().view(-1)
        chosen = members[largest(keys[members], selected(ratio, members.numel()))]
        marks[chosen] = True
        counts[side] = chosen.numel()
        kept = torch.zeros_like(v)
        kept[chosen] = v[chosen]
        means[side] = tree_sum(kept.double()) / max(1, chosen.numel())
    merged = marks.nonzero().view(-1)
    negative = below[merged]
    encode_indices(merged, v.numel(), slots, index)
    signs.zero_()
    signs[: (merged.numel() + 7) // 8] = pack(negative, 1)
    if ef:
        v[merged] -= means[negative.to(torch.int64)]


def adaq_add(
    out: Tensor, means: Tensor, counts: Tensor, index: Tensor, signs: Tensor, slots: int, alpha: float = 1.0
) -> None:
    """`out += alpha * decoded`, after checking that counts, means, signs and indices are consistent."""
    positive, negative = checked_sides(means, counts, slots)
    side = unpack_checked(signs, 1, slots)
    if int(side.sum()) != negative or bool(side[positive + negative :].any()):
        raise broken(f"the signs do not mark the {negative} announced negative elements")
    side = side[: positive + negative]
    chosen = decode_indices(index, out.numel(), slots, positive + negative)
    out.view(-1)[chosen] += means[side].to(out.dtype) * alpha


def checked_sides(means: Tensor, counts: Tensor, slots: int) -> tuple[int, int]:
    """The checked numbers of positive and negative elements that were sent."""
    positive, negative = (int(n) for n in counts.tolist())
    if min(positive, negative) < 0 or positive + negative > slots:
        raise broken(f"{positive} and {negative} elements are announced where {slots} have room")
    if not all(math.isfinite(mean) for mean in means.tolist()):
        raise broken(f"the means {means.tolist()} are not finite")
    return positive, negative
