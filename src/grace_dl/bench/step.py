"""What one exchange of a model's gradients costs, with nothing to overlap: DDP beside our methods, in one run.

Gradients of given shapes are made by a backward pass that does no other work, so that the time is that of the exchange:
DDP's own averaging, PyTorch's fp16 hook, a hook that sends nothing, and every method asked for. Runs of all candidates take
turns, so that a busy moment of the machine hits all alike; the figure is the median over rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..helper import grace_from_params

BASELINES = ("ddp", "ddp fp16 hook", "no communication")


def resnet50_shapes() -> list[tuple[int, ...]]:
    """The 161 parameter shapes of ResNet-50 (He et al. 2016, table 1), 25.6 million numbers in all."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    width = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 * 2**stage
        for block in range(blocks):
            for shape in ((inner, width, 1, 1), (inner, inner, 3, 3), (4 * inner, inner, 1, 1)):
                shapes += [shape, shape[:1], shape[:1]]
            if block == 0:
                shapes += [(4 * inner, width, 1, 1), (4 * inner,), (4 * inner,)]
            width = 4 * inner
    return [*shapes, (1000, 2048), (1000,)]


SHAPES: dict[str, Callable[[], list[tuple[int, ...]]]] = {
    "resnet50": resnet50_shapes,
    "small": lambda: [(256, 64), (256,), (256, 256), (256,), (10, 256), (10,)] * 4,
}


class _Given(torch.autograd.Function):
    """Hands each parameter a gradient that is ready: a backward pass without work."""

    @staticmethod
    def forward(ctx: Any, grads: list[Tensor], *parameters: Tensor) -> Tensor:  # type: ignore[override]
        ctx.grads = grads
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:  # type: ignore[override]
        return (None, *ctx.grads)


class Shapes(nn.Module):
    """A model that is nothing but parameters of given shapes."""

    def __init__(self, shapes: list[tuple[int, ...]], grads: list[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])
        self.grads = grads

    def forward(self) -> Tensor:
        return _Given.apply(self.grads, *self.weights)  # type: ignore[no-any-return]


def _silent(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _candidate(
    label: str, params: dict[str, Any] | None, shapes: str, grads: list[Tensor]
) -> tuple[Any, Any]:
    model = DistributedDataParallel(Shapes(SHAPES[shapes](), grads), gradient_as_bucket_view=True)
    if params is not None:
        return model, grace_from_params(params).attach(model)
    if label == "ddp fp16 hook":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model.register_comm_hook(None, fp16_compress_hook)
    elif label == "no communication":
        model.register_comm_hook(None, _silent)
    return model, None


def worker(
    rank: int,
    world: int,
    emit: Callable[[Any], None],
    shapes: str,
    candidates: list[tuple[str, dict[str, Any] | None]],
    rounds: int,
) -> list[dict[str, Any]]:
    """Measure all candidates on one rank; rank 0's records count."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(rank)
    grads = [torch.randn(shape, generator=generator) for shape in SHAPES[shapes]()]
    built = [(label, *_candidate(label, params, shapes, grads)) for label, params in candidates]
    times: dict[str, list[float]] = {label: [] for label, _ in candidates}
    before: dict[str, Any] = {}
    for turn in range(rounds + 2):  # DDP settles its buckets in the first two
        for label, model, handle in built:
            if turn == 2 and handle is not None:
                before[label] = handle.stats()
            model.zero_grad()
            dist.barrier()
            start = time.perf_counter()
            model().backward()
            if turn >= 2:
                times[label].append(time.perf_counter() - start)
            emit((label, turn))
    return [
        _record(label, dict(candidates)[label], times[label], handle, before.get(label), rounds)
        for label, _, handle in built
    ]


def _record(
    label: str, params: dict[str, Any] | None, seconds: list[float], handle: Any, before: Any, rounds: int
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "label": label,
        "params": params,
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "rounds": rounds,
    }
    if handle is not None:
        after = handle.stats()
        record |= {
            "payload_bytes": (after.payload_bytes - before.payload_bytes) / rounds,
            "leaving_bytes": (after.leaving_bytes - before.leaving_bytes) / rounds,
            "collectives": (after.collectives - before.collectives) / rounds,
            "parts": {k: (after.seconds[k] - before.seconds[k]) / rounds for k in after.seconds},
        }
    return record
