"""What compressing and decoding cost, in memory copies: time ÷ `copy_` of the same tensor in the same run."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import kernels, registry
from ..communicator.base import partner
from ..compressor.base import Compressor
from ..key import Key
from ..memory.base import Memory

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in registry.BUILTIN if name not in ("topk", "dgc", "randomk")},
    "topk 0.1 %": ("topk", {"compress_ratio": 0.001}),
    "topk 1 %": ("topk", {"compress_ratio": 0.01}),
    "dgc 0.1 %": ("dgc", {"compress_ratio": 0.001}),
    "dgc 1 %": ("dgc", {"compress_ratio": 0.01}),
    "randomk 1 %": ("randomk", {"compress_ratio": 0.01}),
    "threshold": ("threshold", {"threshold": 80.0}),
    "powersgd": ("powersgd", {"rank": 4}),
    "acpsgd": ("acpsgd", {"rank": 4}),
}
"""Label to method and settings. With error feedback the threshold sends about 1 % a step here."""

SIZES = (1_000, 10_000, 100_000, 1_000_000, 25_000_000)


def fastest(call: Callable[[], object], budget: float = 0.6, least: int = 3, most: int = 200) -> float:
    """Seconds of the fastest of several calls."""
    call()
    best, spent, done = float("inf"), 0.0, 0
    while done < least or (spent < budget and done < most):
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        best, spent, done = min(best, took), spent + took, done + 1
        if spent > 4 * budget:
            break
    return best


@contextmanager
def configured(backend: str, threads: int) -> Iterator[None]:
    """Kernels of one backend on a number of threads."""
    before, count = kernels.forced, torch.get_num_threads()
    kernels.forced = backend
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(count)
        kernels.forced = before


def measure(label: str, backend: str, threads: int, numel: int) -> dict[str, Any]:
    """One record: copy, compress with error feedback, and decode one peer's payload into an accumulator."""
    name, settings = CASES[label]
    compressor = registry.method(name).cls(**settings).paired(feedback=True)
    memory = _feedback(compressor)
    generator = torch.Generator().manual_seed(7)
    grad = torch.randn(_shape(compressor, numel), generator=generator)
    out = torch.zeros(numel)
    with configured(backend, threads):
        copy = _copy_seconds(grad)
        if compressor.multi_round:
            compress, decode, size = _rounds(compressor, memory, grad, out)
        else:
            compress, decode, size = _single(compressor, memory, grad, out)
        copy = min(copy, _copy_seconds(grad))
    gc.collect()
    return {
        "method": name,
        "label": label,
        "settings": settings,
        "backend": backend,
        "threads": threads,
        "numel": numel,
        "copy_seconds": copy,
        "compress_seconds": compress,
        "decode_seconds": decode,
        "compress_copies": compress / copy,
        "decode_copies": decode / copy,
        "bits": 8 * size / numel,
    }


def _copy_seconds(tensor: torch.Tensor) -> float:
    target = torch.empty_like(tensor)
    return fastest(lambda: target.copy_(tensor))


def _feedback(compressor: Compressor) -> Memory:
    """The memory that keeps what is not sent: the method's own, or a residual. (`none` leaves nothing to keep.)"""
    method = registry.method_of(compressor)
    names = method.memories
    keeps = "residual" in names and names[0] in ("none", "residual") and method.name != "none"
    name = "residual" if keeps else names[0]
    return partner(registry.memory_class(name), compressor)


def _shape(compressor: Compressor, numel: int) -> tuple[int, ...]:
    if compressor.takes((numel,), 0):
        return (numel,)
    rows = int(numel**0.5)
    while numel % rows:
        rows -= 1
    return (rows, numel // rows)


def _single(
    compressor: Compressor, memory: Memory, grad: torch.Tensor, out: torch.Tensor
) -> tuple[float, float, int]:
    numel = grad.numel()
    spec = compressor.spec(numel, grad.dtype)
    slots = None if spec is None else [torch.zeros(count, dtype=kind) for kind, count in spec]
    key = Key("w")

    def compress() -> Any:
        pending = memory.begin(grad, key, compressor, slots)
        memory.commit(pending)
        return pending

    seconds = fastest(compress)
    pending = compress()
    decode = fastest(lambda: compressor.accumulate_(out, pending.payload, pending.ctx))
    return seconds, decode, sum(t.nbytes for t in pending.payload)


def _rounds(
    compressor: Compressor, memory: Memory, grad: torch.Tensor, out: torch.Tensor
) -> tuple[float, float, int]:
    steps = iter(range(1 << 30))
    sent = [0]

    def compress() -> Any:
        rounds = memory.rounds([(grad, Key("w", step=next(steps)))], compressor)
        sent[0] = 0
        try:
            request = next(rounds)
            while True:
                sent[0] += sum(t.nbytes for t in request)
                request = rounds.send(request)
        except StopIteration as end:
            for pending in end.value:
                memory.commit(pending)
            return end.value[0]

    seconds = fastest(compress)
    pending = compress()
    decode = fastest(lambda: compressor.combine_(out, [pending.payload], pending.ctx))
    return seconds, decode, sent[0]
