"""1-bit Adam and 0/1 Adam: which of Adam's steps are exchanged, and how."""

from __future__ import annotations

from typing import Any

from ..algebra.base import Method
from ..algebra.text import CarriesMethod
from ..settings import whole
from .momentum_adam import MomentumAdam, Step
from .momentum_settings import Params

_WARMUP = "the steps of plain Adam before the variance is frozen; a tenth to a fifth of all steps is usual"


class OneBitAdam(MomentumAdam):
    """1-bit Adam (Tang 2021, arXiv:2102.02888): plain Adam for `warmup` steps, then momenta travel as signs.

    After the warm-up the variance is frozen, and ranks exchange m = β₁·m + (1 - β₁)·g as one sign per element and a scale, with error
    feedback on both sides: what a rank has not sent of its momentum, and its share of the average, is added to the next. No
    `DistributedDataParallel` is needed. On creation all ranks take the parameters of rank 0. `optimizer.grace` is the handle.

    params: `model.named_parameters()`, `model.parameters()` or parameter groups.
    lr, betas, eps, weight_decay: as in `torch.optim.AdamW`; the decay is decoupled.
    warmup: the number of uncompressed steps; a tenth to a fifth of all steps is usual.
    method: what compresses momenta; signs with a mean magnitude through an all-to-all by default.
    group: the process group (or one-dimensional `DeviceMesh`) to exchange with; by default all ranks.

    >>> import torch
    >>> import grace_dl as grace
    >>> model = torch.nn.Linear(64, 64)
    >>> optimizer = grace.OneBitAdam(model.named_parameters(), lr=1e-3, warmup=2)
    >>> for _ in range(4):
    ...     optimizer.zero_grad()
    ...     model(torch.ones(1, 64)).sum().backward()
    ...     optimizer.step()
    >>> optimizer.grace.stats().steps
    4
    """

    _weighted = False

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        warmup: int,
        method: Method | str | CarriesMethod | None = None,
        group: Any = None,
    ) -> None:
        self.warmup = whole("warmup", warmup, _WARMUP, least=1)
        super().__init__(params, lr, betas, eps, weight_decay, method, group)

    def _kind(self, step: int) -> Step:
        return Step.VARIANCE if step < self.warmup else Step.EXCHANGE


class ZeroOneAdam(MomentumAdam):
    """0/1 Adam (Lu 2022, arXiv:2202.06009): rarer and rarer updates of the variance, then local steps between exchanges.

    During `warmup` the interval between updates of the variance doubles after every `variance_updates` of them; all other steps
    exchange momenta as 1-bit Adam does. After it the variance is frozen, and ranks exchange less and less often: the interval doubles after
    every `local_steps` steps, up to `longest`. What travels is the sum of momenta, each times the rate of its step, since
    the last exchange. Ranks differ between exchanges; call `synchronize()` before an evaluation.

    params: `model.named_parameters()`, `model.parameters()` or parameter groups.
    lr, betas, eps, weight_decay: as in `torch.optim.AdamW`; the decay is decoupled.
    warmup: the steps in which the variance is updated; a tenth to a fifth of all steps is usual, or those until the learning rate peaks.
    variance_updates: how many updates of the variance have the same interval (κ in the paper).
    local_steps: for how many steps the interval between exchanges stays the same.
    longest: the longest interval between exchanges (H in the paper); 1 takes no local steps.
    method: what compresses momenta; signs with a mean magnitude through an all-to-all by default.
    group: the process group (or one-dimensional `DeviceMesh`) to exchange with; by default all ranks.

    >>> import torch
    >>> import grace_dl as grace
    >>> model = torch.nn.Linear(64, 64)
    >>> optimizer = grace.ZeroOneAdam(model.named_parameters(), lr=1e-3, warmup=2, local_steps=4)
    >>> for _ in range(10):  # the last four in two rounds
    ...     optimizer.zero_grad()
    ...     model(torch.ones(1, 64)).sum().backward()
    ...     optimizer.step()
    >>> optimizer.grace.stats().steps
    8
    """

    _weighted = True

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        warmup: int,
        variance_updates: int = 16,
        local_steps: int = 1000,
        longest: int = 16,
        method: Method | str | CarriesMethod | None = None,
        group: Any = None,
    ) -> None:
        self.warmup = whole("warmup", warmup, _WARMUP, least=1)
        self.variance_updates = whole(
            "variance_updates",
            variance_updates,
            "the updates of the variance after which their interval doubles; 16 is usual",
            least=1,
        )
        self.local_steps = whole(
            "local_steps",
            local_steps,
            "the steps after which the interval between exchanges doubles",
            least=1,
        )
        self.longest = whole(
            "longest",
            longest,
            "the longest interval between exchanges; 16 is usual, 1 is no local step",
            least=1,
        )
        super().__init__(params, lr, betas, eps, weight_decay, method, group)

    def _kind(self, step: int) -> Step:
        if step < self.warmup:
            # Interval 2^c begins at step κ·(2^c - 1) (section 6 of the paper).
            interval = 1 << ((step // self.variance_updates + 1).bit_length() - 1)
            since = step - self.variance_updates * (interval - 1)
            return Step.EXCHANGE if since % interval else Step.VARIANCE
        era, since = divmod(step - self.warmup, self.local_steps)
        interval = min(1 << min(era, 62), self.longest)
        ends = (since + 1) % interval == 0 or since + 1 == self.local_steps  # no round spans two intervals
        return Step.EXCHANGE if ends else Step.LOCAL
