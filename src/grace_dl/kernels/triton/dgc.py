"""Triton: deep gradient compression."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ..check import payload_part
from ..reference import basic, dgc_undo_
from ..reference import sparse as reference
from ..source import Correction, Source
from ..wire import Sampling, index_bytes
from .basic import axpby_
from .bucket import DTYPES, numbers_on, run_table, together
from .launch import TILE, beside, float_bits, halves, inputs, run, scalars, serves, tiles
from .programs import dgc as programs
from .sparse import KEYS, emit, select, topk_encode

__all__ = ["dgc_correct_", "dgc_dense_", "dgc_encode", "dgc_step_"]


def _supported(states: Sequence[Correction]) -> bool:
    """Whether the kernels support these states in one launch."""
    tensors = [tensor for m, v, grad, *_ in states for tensor in (m, v, grad)]
    same = all(m.numel() == v.numel() == grad.numel() for m, v, grad, *_ in states)
    return same and bool(states) and together(tensors)


def _correct(states: Sequence[Correction], mu: float, nesterov: bool, dense: bool = False) -> None:
    counts = [tiles(state.v.numel()) for state in states]
    lines = []
    for (m, v, grad, scale, _), first in zip(states, accumulate(counts, initial=0)):
        beside(states[0].v, m, v, grad)
        lines.append([first, v.data_ptr(), v.numel(), m.data_ptr(), grad.data_ptr(), float_bits(scale)])
    x = states[0].v
    constants = {"DTYPE": DTYPES[x.dtype], "NESTEROV": nesterov, "DENSE": dense}
    run_table(programs.correct, lines, sum(counts), x, *scalars(mu), **constants)


def dgc_correct_(state: Correction, mu: float, nesterov: bool) -> None:
    """Momentum correction of the clipped gradient (Lin 2018, equations 4 and 5)."""
    if _supported([state]):
        _correct([state], mu, nesterov)
    else:
        reference.dgc_correct_(state, mu, nesterov)


def dgc_dense_(means: Sequence[Tensor], momenta: Sequence[Tensor], mu: float, nesterov: bool) -> list[bool]:
    """Momentum of dense parameters, after the average; if that is not finite, returns False and changes nothing."""
    states = [Correction(m, mean, mean) for mean, m in zip(means, momenta)]
    if not _supported(states):
        return reference.dgc_dense_(means, momenta, mu, nesterov)
    finite = [not mean.is_cpu or basic.all_finite(mean) for mean in means]
    chosen = [state for state, good in zip(states, finite) if good]
    if chosen:
        _correct(chosen, mu, nesterov, dense=True)
    return finite


class _Steps:
    """Corrects all states in one launch at the first `next`, and encodes one at each.

    Not a generator: the next states follow after an exception.
    """

    def __init__(
        self,
        states: Sequence[Correction],
        mu: float,
        nesterov: bool,
        samplings: Sequence[Sampling],
        payloads: Sequence[Sequence[Tensor]],
    ) -> None:
        self.states, self.samplings, self.payloads = states, samplings, payloads
        self.mu, self.nesterov = mu, nesterov
        self.place = 0
        self.corrected: list[bool] = []

    def __iter__(self) -> Iterator[bool]:
        return self

    def __next__(self) -> bool:
        if self.place == len(self.states):
            raise StopIteration
        if not self.corrected:
            corrected = [reference.accepted(state) for state in self.states]
            chosen = [state for state, good in zip(self.states, corrected) if good]
            if chosen:
                _correct(chosen, self.mu, self.nesterov)
            self.corrected = corrected
        place, self.place = self.place, self.place + 1
        if not self.corrected[place]:
            return False
        try:
            values, index, count = self.payloads[place]
            source = Source(self.states[place].v)
            dgc_encode(source, values.numel(), self.samplings[place], values, index, count)
        except BaseException as error:
            # An error concerns this state, an interrupt all that are left.
            end = self.place if isinstance(error, Exception) else len(self.states)
            for state, good in zip(self.states[place:end], self.corrected[place:end]):
                if good:
                    dgc_undo_(state, self.mu, self.nesterov)
            self.place = end
            raise
        return True


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
    if not _supported(states):
        return reference.dgc_step_(states, mu, nesterov, samplings, payloads)
    return _Steps(states, mu, nesterov, samplings, payloads)


def dgc_encode(
    source: Source, k: int, sampling: Sampling, values: Tensor, index: Tensor, count: Tensor
) -> None:
    """At most `k` elements above a threshold estimated from a sample (Lin 2018, section 4 and its code)."""
    x, ef = source.x, source.leaves("residual")
    n = x.numel()
    if not serves(x) or not 0 < k <= n:
        return reference.dgc_encode(source, k, sampling, values, index, count)
    payload_part(values, values.dtype, k)
    payload_part(index, torch.uint8, index_bytes(n, k))
    payload_part(count, torch.int32, 1)
    beside(x, values, index, count)
    if sampling.samples >= n:
        count.fill_(k)
        return topk_encode(source, k, values, index)
    if ef and source.grad is not None:
        axpby_(x, source.grad, source.beta, source.gamma)
        source = Source(x)
    found, below = _hits(source, k, sampling)
    if k < n:
        # Elements below the threshold are -1 and come last: if one is among the k largest, all hits are sent.
        least = torch.topk(found, k, sorted=False).values.min()
        chosen, sent, number = select(source, ef, torch.maximum(least, below), k, least >= 0)
    else:
        chosen, sent, number = select(source, ef, below, k, torch.zeros_like(below, dtype=torch.bool))
    count.copy_(number.view(1))
    emit(x, ef, chosen, sent, values, index, count)


def _hits(source: Source, k: int, s: Sampling) -> tuple[Tensor, Tensor]:
    """The magnitudes that reach the estimated threshold (-1 for others), and the next smaller magnitude.

    The threshold is adapted on the device, which is not asked whether the loop may end.
    """
    x = source.x
    n, formed = x.numel(), inputs(source)
    constants = {"HAS_G": source.grad is not None, "TILE": TILE}

    def integers(size: int) -> Tensor:
        return torch.empty(size, dtype=KEYS[x.dtype], device=x.device)

    sample = integers(s.samples)
    arguments = (*halves(s.word), n, s.samples, s.start, s.stride, sample)
    run(programs.sample_keys, tiles(s.samples), x, *formed, *arguments, RANDOM=not s.stride, **constants)
    thresholds = integers(s.iterations + 1)
    thresholds[:1] = torch.topk(sample, s.rank, sorted=False).values.min()
    hits = torch.zeros(s.iterations + 1, dtype=torch.int64, device=x.device)
    # Comparing with these integers is comparing with the products.
    fewest, most = math.ceil(s.lower * k), n if s.resample else math.floor(s.upper * k)
    bounds = numbers_on(x.device, (fewest, most, float_bits(s.lower), float_bits(s.upper)))
    adapted = (*formed, n, thresholds, hits, bounds)
    for step in range(s.iterations):
        run(programs.count_hits, tiles(n), x, *adapted, step, **constants)
    found, below = integers(n), integers(1)
    run(programs.hit_keys, tiles(n), x, *adapted, s.iterations, found, below, **constants)
    return found, below.view(())
