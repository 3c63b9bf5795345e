"""`grace bench kernels`: the time of compression and decoding, relative to `copy_` of the same tensor."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from .. import catalog, kernels
from ..algebra.named import Named
from ..algebra.text import parse
from ..compressor.base import Compressor
from ..console import output
from ..errors import ConfigError
from ..integrations.attach import manual
from ..key import Key
from ..memory.base import Memory
from ..registry import unknown
from . import plots, tables
from .results import Results, check_elements

_CHOSEN = {
    "topk": ("topk:0.001", "topk:0.01"),
    "dgc": ("dgc:0.001", "dgc:0.01"),
    # With error feedback this threshold sends about 1 % per step here.
    "threshold": ("threshold:80.0",),
}


def default_methods() -> list[str]:
    """The default methods: every built-in method, the best-known sparsifiers at two ratios."""
    return [text for name in catalog.methods() for text in _CHOSEN.get(name, (name,))]


SIZES = (1_000, 10_000, 100_000, 1_000_000, 25_000_000)


BACKENDS = ("reference", "native")


def measure_kernels(
    methods: Sequence[str],
    out: Path,
    *,
    sizes: Sequence[int] = SIZES,
    backends: Sequence[str] = BACKENDS,
    threads: Sequence[int] = (1, 2),
    fresh: bool = False,
) -> None:
    """Measure every method at every size, with every backend and number of threads."""
    for name in backends:
        if name not in BACKENDS:
            raise unknown("backend", name, BACKENDS)
        kernels.backend(name, "cpu")
    if min(threads) < 1 or min(sizes) < 1:
        raise ConfigError("--sizes and --threads must be positive.")
    check_elements("--sizes", max(sizes), copies=4)  # gradient, residual, payload, decoded
    for method in methods:
        _single_method(method)
    console = output()
    settings = {"sizes": list(sizes), "threads": list(threads), "backends": list(backends)}
    results = Results(out, "kernels", settings, fresh)
    todo = [
        (method, name, count, numel)
        for numel in sizes
        for method in methods
        for name in backends
        for count in threads
    ]
    with Progress(console=console) as progress:
        task = progress.add_task("measuring", total=len(todo))
        for case in todo:
            identity = "/".join(map(str, case))
            progress.update(task, description=identity)
            if identity not in results:
                results.add(identity, measure(*case))
            progress.advance(task)
    records = list(results.records.values())
    console.print(tables.heading(results.header))
    for numel in sizes:
        console.print(tables.kernels_table(records, numel))
    console.print(f"Results: {out.resolve()}", soft_wrap=True)
    plots.show(console, out, plots.plot_kernels, results)


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


def measure(method: str, backend: str, threads: int, numel: int) -> dict[str, Any]:
    """One record: copy, compress with error feedback, and decode one peer's payload into an accumulator."""
    with manual(_with_feedback(_single_method(method))) as handle:
        communicator = handle.session.communicator_of("w")
        compressor, memory = communicator.compressor, communicator.memory
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
        "method": method,
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


def _single_method(text: str) -> Named:
    method = parse(text)
    if not isinstance(method, Named) or len(list(method.parts())) > 1:
        raise ConfigError(f"{text} is made of several methods; measure each of them by itself.")
    return method


def _with_feedback(method: Named) -> Named:
    """The method with error feedback, by its own memory or a residual; `none` has no error to feed back."""
    given = method.get("memory") is not None or method.name == "none"
    if given or method.info.memories[0] != "none" or "residual" not in method.info.memories:
        return method
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some diverge with it in training, which does not matter here
        return method.but(memory="residual")


def _shape(compressor: Compressor, numel: int) -> tuple[int, ...]:
    if compressor.takes((numel,)):
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
