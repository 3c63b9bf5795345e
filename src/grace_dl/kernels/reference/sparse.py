"""Selecting elements and adding them back: top-k, threshold, random-k, DGC; plain torch.

Magnitudes are compared as integers with the same bits: the order is the same as for floats, ties are exact, and NaN
sorts above all other values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from ..check import announced, broken
from ..source import Correction, Source
from ..wire import Sampling, Sent, index_bytes
from .basic import all_finite, clear_, formed
from .basic import largest as highest
from .indices import decode_indices, encode_indices, encode_marked
from .randomness import draws

__all__ = [
    "dgc_commit_",
    "dgc_correct_",
    "dgc_dense_",
    "dgc_encode",
    "dgc_step_",
    "dgc_undo_",
    "randomk_add",
    "randomk_encode",
    "sparse_add",
    "sparse_combine_",
    "sparse_zero_",
    "threshold_encode",
    "topk_encode",
]


def magnitudes(v: Tensor) -> Tensor:
    """The bits of |v| as integers, which sort like |v|."""
    if v.dtype == torch.float64:
        return v.view(torch.int64) & 0x7FFFFFFFFFFFFFFF
    return v.view(torch.int32) & 0x7FFFFFFF


def largest(keys: Tensor, k: int) -> Tensor:
    """Sorted positions of the `k` largest keys; ties are broken by the lowest position."""
    if k >= keys.numel():
        return torch.arange(keys.numel(), device=keys.device)
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=keys.device)
    return _positions(_marked(keys, k), k)


def _marked(keys: Tensor, k: int) -> Tensor:
    """Which keys are the `k` largest, 0 < k < n; ties are broken by the lowest position."""
    least = torch.topk(keys, k, sorted=False).values.min()
    above, ties = keys > least, keys == least
    return above | (ties & (ties.cumsum(0) <= k - above.sum()))


def _positions(marked: Tensor, k: int) -> Tensor:
    """Where at most `k` elements are marked, in order, then the last position; without asking for their number."""
    n = marked.numel()
    place = torch.where(marked, marked.cumsum(0) - 1, k)
    padded = torch.full((k + 1,), n - 1, dtype=torch.int64, device=marked.device)
    return padded.scatter_(0, place, torch.arange(n, device=marked.device))[:k]


def narrow_values(v: Tensor, out: Tensor) -> None:
    """Cast to `out`'s dtype; finite values out of range saturate."""
    out.copy_(v)
    if out.dtype != v.dtype:
        top = torch.finfo(out.dtype).max
        spilled = out.isinf() & v.isfinite()
        out.masked_fill_(spilled & (v > 0), top).masked_fill_(spilled & (v < 0), -top)


def _emit(v: Tensor, chosen: Tensor, ef: bool, k: int, values: Tensor, index: Tensor) -> None:
    """Write values and coded indices of the chosen elements, padded to `k`; with `ef`, subtract them from v."""
    count = chosen.numel()
    sent = v[chosen]
    narrow_values(sent, values[:count])
    values[count:] = 0
    encode_indices(chosen, v.numel(), k, index)
    if ef:
        v[chosen] = sent - values[:count].to(v.dtype)


def topk_encode(source: Source, k: int, values: Tensor, index: Tensor) -> None:
    """The `k` largest magnitudes; ties are broken by the lowest index."""
    v, ef = formed(source)
    _emit(v, largest(magnitudes(v), k), ef, k, values, index)


def threshold_encode(source: Source, threshold: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """All elements with |v| >= threshold (possibly none), as values of `dtype` and coded indices."""
    v, ef = formed(source)
    least = magnitudes(torch.tensor(threshold, dtype=v.dtype, device=v.device))
    chosen = (magnitudes(v) >= least).nonzero().view(-1)
    k = chosen.numel()
    values = torch.empty(k, dtype=dtype, device=v.device)
    index = torch.empty(index_bytes(v.numel(), k), dtype=torch.uint8, device=v.device)
    _emit(v, chosen, ef, k, values, index)
    return values, index


def sparse_add(
    out: Tensor, values: Tensor, index: Tensor, alpha: float = 1.0, count: int | None = None
) -> None:
    """`out += alpha * decoded`; every index is checked before the first element is touched."""
    count = values.numel() if count is None else count
    chosen = decode_indices(index, out.numel(), values.numel(), count)
    if bool((values[count:] != 0).any()):
        raise broken(f"values behind the {count} announced ones are not zero")
    out.view(-1)[chosen] += values[:count].to(out.dtype) * alpha


def sparse_combine_(outs: Sequence[Tensor], sent: Sequence[Sequence[Sent]], alpha: float) -> None:
    """Overwrite each of `outs` with alpha times the sum of what all ranks sent for it."""
    combine_with(sparse_add, outs, sent, alpha)


def combine_with(
    add: Callable[[Tensor, Tensor, Tensor, float, int], None],
    outs: Sequence[Tensor],
    sent: Sequence[Sequence[Sent]],
    alpha: float,
) -> None:
    """`sparse_combine_` with a backend's own `sparse_add`."""
    for out, of_ranks in zip(outs, sent):
        clear_(out)
        for values, index, count in of_ranks:
            add(out, values, index, alpha, announced(values, count))


def sparse_zero_(out: Tensor, index: Tensor, k: int, count: int | None = None) -> None:
    """Set the elements at coded indices to zero."""
    out.view(-1)[decode_indices(index, out.numel(), k, count)] = 0


# Random-k ---------------------------------------------------------------------------------------------


def randomk_indices(d: int, k: int, word: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """One index in each of `k` strata that split 0..d evenly, and the sizes of the strata."""
    edges = torch.arange(k + 1, device=device) * d // k
    sizes = edges[1:] - edges[:-1]
    return edges[:-1] + (draws(word, torch.arange(k, device=device)) * sizes >> 32), sizes


def randomk_encode(source: Source, word: int, scaled: bool, values: Tensor) -> None:
    """The values at the drawn indices, times their stratum's size if `scaled`."""
    v, ef = formed(source)
    chosen, sizes = randomk_indices(v.numel(), values.numel(), word, v.device)
    sent = v[chosen]
    values.copy_(sent * sizes.to(v.dtype) if scaled else sent)
    if ef:
        v[chosen] = sent - values


def randomk_add(out: Tensor, values: Tensor, word: int, alpha: float = 1.0) -> None:
    """`out += alpha * values` at the drawn indices."""
    chosen, _ = randomk_indices(out.numel(), values.numel(), word, out.device)
    out.view(-1)[chosen] += values * alpha


# Deep gradient compression ----------------------------------------------------------------------------


def dgc_encode(
    source: Source, k: int, sampling: Sampling, values: Tensor, index: Tensor, count: Tensor
) -> None:
    """At most `k` elements above a threshold estimated from a sample (Lin 2018, section 4 and its code)."""
    v, ef = formed(source)
    keys = magnitudes(v)
    if sampling.samples >= v.numel():
        count.fill_(min(k, v.numel()))
        return _emit(v, largest(keys, k), ef, k, values, index)
    hit = keys >= magnitudes(_threshold(v, keys, k, sampling))
    if k < v.numel():
        # Elements below the threshold come last, and only if there are fewer hits than places.
        hit &= _marked(torch.where(hit, keys, -1), k)
    number = hit.sum()
    chosen = _positions(hit, k)
    valid = torch.arange(k, device=v.device) < number
    sent = v[chosen]
    narrow_values(sent, values)
    values.masked_fill_(~valid, 0)
    encode_marked(hit, chosen, index)
    count.fill_(number)
    if ef:
        # Places without a hit write what the first one writes: it is the only way to write nothing more.
        left = sent - values.to(v.dtype)
        v[torch.where(valid, chosen, chosen[:1])] = torch.where(valid, left, left[:1])


def _threshold(v: Tensor, keys: Tensor, k: int, s: Sampling) -> Tensor:
    """The estimated threshold; the loop runs on the device of `v`, which is not asked whether it may end."""
    places = torch.arange(s.samples, device=v.device)
    places = s.start + places * s.stride if s.stride else draws(s.word, places) * v.numel() >> 32
    threshold = torch.topk(v.abs()[places], s.rank, sorted=False).values.min()
    # Integers: torch would compare with the products themselves in float32.
    fewest, most = math.ceil(s.lower * k), math.floor(s.upper * k)
    for _ in range(s.iterations):
        hits = (keys >= magnitudes(threshold)).sum()
        # Within the bounds nothing changes, then or in later iterations.
        lowered = torch.where(hits < fewest, threshold * s.lower, threshold)
        raised = (hits > most) & (not s.resample)
        threshold = torch.where(raised, threshold * s.upper, lowered)
    return threshold


def dgc_correct_(state: Correction, mu: float, nesterov: bool) -> None:
    """Momentum correction of the clipped gradient (Lin 2018, equations 4 and 5)."""
    m, v, g = _flat(state)
    if nesterov:
        m.add_(g).mul_(mu)
        v.add_(m).add_(g)
    else:
        m.mul_(mu).add_(g)
        v.add_(m)


def dgc_undo_(state: Correction, mu: float, nesterov: bool) -> None:
    """Undo `dgc_correct_`, up to rounding. With mu = 0 the old momentum has no influence and becomes 0."""
    m, v, g = _flat(state)
    v.sub_(m)
    if nesterov:
        v.sub_(g)
    if mu == 0:
        m.zero_()
    elif nesterov:
        m.div_(mu).sub_(g)
    else:
        m.sub_(g).div_(mu)


def _flat(state: Correction) -> tuple[Tensor, Tensor, Tensor]:
    return state.m.view(-1), state.v.view(-1), state.grad.view(-1) * state.scale


def dgc_step_(
    states: Sequence[Correction],
    mu: float,
    nesterov: bool,
    samplings: Sequence[Sampling],
    payloads: Sequence[Sequence[Tensor]],
) -> Iterator[bool]:
    """`dgc_correct_`, and `dgc_encode` of the new `v`, complete until `dgc_commit_`; one state per `next`.

    Yields False if a gradient is not finite or reaches its limit: `m` and `v` are then restored, up to rounding.
    """
    return map(partial(_dgc_step_, mu, nesterov), states, samplings, payloads)


def accepted(state: Correction) -> bool:
    """Whether a gradient is finite and below its limit; those on a device are cleaned and flagged before."""
    return not state.grad.is_cpu or highest(state.grad) < state.limit


def _dgc_step_(
    mu: float, nesterov: bool, state: Correction, sampling: Sampling, payload: Sequence[Tensor]
) -> bool:
    if not accepted(state):
        return False
    dgc_correct_(state, mu, nesterov)
    try:
        values, index, count = payload
        dgc_encode(Source(state.v), values.numel(), sampling, values, index, count)
    except BaseException:
        dgc_undo_(state, mu, nesterov)
        raise
    return True


def dgc_commit_(vs: Sequence[Tensor], ms: Sequence[Tensor] | None, sent: Sequence[Sent]) -> None:
    """Remove sent elements from each `v`, and zero their momentum (Lin 2018, section 3.2) unless `ms` is None."""
    for place, (v, (values, index, number)) in enumerate(zip(vs, sent)):
        count = announced(values, number)
        sparse_add(v, values, index, -1.0, count)
        if ms is not None:
            sparse_zero_(ms[place], index, values.numel(), count)


def dgc_dense_(means: Sequence[Tensor], momenta: Sequence[Tensor], mu: float, nesterov: bool) -> list[bool]:
    """Momentum of dense parameters, after the average; if that is not finite, returns False and changes nothing."""
    # The verdict of a step covers averages on a device.
    finite = [not mean.is_cpu or all_finite(mean) for mean in means]
    for mean, m, good in zip(means, momenta, finite):
        if not good:
            continue
        m = m.view(mean.shape)
        grad = mean.to(m.dtype)
        if nesterov:
            m.add_(grad).mul_(mu)
            mean.copy_(m + grad)
        else:
            m.mul_(mu).add_(grad)
            mean.copy_(m)
    return finite
