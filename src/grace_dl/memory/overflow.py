"""Steps with gradients or state so large that state may overflow.

Ordinary steps write state while they encode, and are undone by arithmetic. Neither works here: a sum may become infinite,
and subtracting a large gradient again loses what was there before. Such a step is tried with a copy of the state at
hand. It counts as not finite, on all ranks, if its payload or what would remain in state cannot be sent.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from .. import kernels
from ..compressor.base import Compressor, Payload
from ..key import Key
from .base import Memory, NotFinite, Pending
from .norms import most


def begin(memory: Memory, grad: Tensor, key: Key, compressor: Compressor, out: Payload | None) -> Pending:
    """`memory.begin` with a gradient or state that is large; raises `NotFinite` with state exactly as before."""
    if not kernels.of(grad).all_finite(grad):
        raise NotFinite
    before = memory.snapshot(key.name)
    try:
        pending = memory.begin(grad, key, compressor, out)
        good = _payable(memory, pending, grad)
    except BaseException:
        memory.restore(key.name, before)
        raise
    if good:
        pending.before = before
        memory.observe([key.name])
        return pending
    memory.restore(key.name, before)
    # State that ranks have in common cannot be dropped by one of them.
    if not kernels.of(grad).ordinary(grad) or memory.exact_average:
        raise NotFinite
    drop(memory, key.name)
    return memory.begin(grad, key, compressor, out)


def drop(memory: Memory, name: str) -> None:
    """Zero state that can never be sent: every later step would fail by it."""
    warnings.warn(
        f"the state of {name!r} in {type(memory).__name__} is infinite or too large to be sent, and is dropped: gradients "
        "were close to the largest number of their dtype for several steps, or a checkpoint holds such state.",
        RuntimeWarning,
        stacklevel=2,
    )
    slots = memory.state.get(name, {})
    for slot in memory.roles:  # others must stay the same on all ranks
        if slot in slots:
            slots[slot].zero_()
    memory.observe([name])


def _payable(memory: Memory, pending: Pending, grad: Tensor) -> bool:
    """Whether the payload is valid, all ranks can add it up, and what remains in state can be sent in later steps."""
    compressor, payload, workers = pending.compressor, pending.payload, pending.key.workers
    if compressor.faults(payload, pending.ctx):
        return False
    decoded = torch.zeros_like(grad)
    compressor.accumulate_(decoded, payload, pending.ctx)
    if not kernels.of(decoded).largest(decoded) <= torch.finfo(grad.dtype).max / workers:
        return False
    return memory.magnitude(pending) <= most(grad.dtype, workers)
