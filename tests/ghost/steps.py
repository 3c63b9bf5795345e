"""Training steps on the pretended device and on the CPU; runs in a process of its own (see test_ghost.py)."""

from __future__ import annotations

import contextlib
import sys
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import HashStore

from contract.cases import Case, cases_of
from ghost import device
from ghost.device import Count, Device, counting, down, up
from ghost.network import Network, one_order
from grace_dl import manual, simulated
from grace_dl.handle import ManualHandle
from grace_dl.pipeline.bucket import Bucket, Segment
from grace_dl.transport import device_watch
from grace_dl.transport.base import Transport

MATRIX, VECTOR = (32, 80), (70,)
"""A compressed parameter, and one below the size from which parameters are compressed."""


@dataclass(frozen=True)
class Shape:
    """The size of a job: ranks, buckets a step, and compressed and small parameters a bucket."""

    ranks: int
    buckets: int
    matrices: int
    vectors: int


SMALL, LARGE = Shape(2, 1, 1, 1), Shape(3, 2, 3, 2)


def setup(guard: str, kernels: str) -> None:
    """Prepare this process, with "reference" or "triton" kernels on the pretended device."""
    device.install(guard)
    device_watch.LOOK_SECONDS = 0.0
    torch.set_num_threads(1)
    if kernels == "triton":
        _teach_triton()
    else:
        sys.modules["triton"] = None  # type: ignore[assignment]


def _teach_triton() -> None:
    """Programs run in Triton's interpreter on the data below; it serves one thread at a time."""
    from triton.runtime.interpreter import InterpretedFunction

    run, turn = InterpretedFunction.run, threading.Lock()

    def launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(argument, device.Ghost) for argument in args):
            device.launch(f"triton {self.fn.__name__}")
        with turn, torch._C._DisableTorchDispatch():
            return run(self, *map(down, args), **{name: down(value) for name, value in kwargs.items()})

    InterpretedFunction.run = launched


def gradients(shape: Shape, step: int, dtype: torch.dtype) -> list[list[list[Tensor]]]:
    """`[rank][bucket][parameter]`."""
    generator = torch.Generator().manual_seed(step)

    def draw(size: tuple[int, ...]) -> Tensor:
        x = torch.randn(size, generator=generator, dtype=torch.float64)
        return (x * torch.rand(size, generator=generator, dtype=torch.float64)).to(dtype)

    sizes = [MATRIX] * shape.matrices + [VECTOR] * shape.vectors
    return [[[draw(size) for size in sizes] for _ in range(shape.buckets)] for _ in range(shape.ranks)]


def bucket_of(number: int, grads: list[Tensor], on_device: bool) -> Bucket:
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    flat = up(flat) if on_device else flat
    parts = flat.split([grad.numel() for grad in grads])
    segments = [
        Segment(f"bucket{number}.{place}", part, part.view(grad.shape))
        for place, (part, grad) in enumerate(zip(parts, grads))
    ]
    return Bucket(("ghost", number), segments, flat)


def step(
    handle: ManualHandle, grads: list[list[Tensor]], on_device: bool
) -> tuple[list[Tensor], Count, Count]:
    """One training step: the results by bucket, and what was counted before and during `finish`."""
    buckets = [bucket_of(number, of_bucket, on_device) for number, of_bucket in enumerate(grads)]
    driver = handle.session.driver()
    try:
        with counting() as before:
            for bucket in buckets:
                driver.launch(bucket)
        with counting() as after:
            driver.finish()
    except BaseException:
        driver.discard()  # here: without the device, what is left could not be undone
        raise
    results = [down(bucket.flat) for bucket in buckets if bucket.flat is not None]
    return results, before, after


@dataclass
class Job:
    """Handles of all ranks, on the pretended device or on the CPU."""

    case: Case
    shape: Shape
    on_device: bool = True

    def __post_init__(self) -> None:
        self.world = simulated(self.shape.ranks, timeout=60)
        store = HashStore()
        wires: list[Transport] = [Network(t, store) if self.on_device else t for t in self.world]
        self.networks = [wire for wire in wires if isinstance(wire, Network)]
        self.handles = [manual(self.case.value(), transport=wire) for wire in wires]

    def step(
        self, number: int, dtype: torch.dtype = torch.float32, spoil: bool = False
    ) -> list[tuple[list[Tensor], Count, Count]]:
        """One step on all ranks: what `step` returns, by rank. `spoil`: two gradients are not finite."""
        grads = gradients(self.shape, number, dtype)
        if spoil:
            grads[1][0][0].view(-1)[7] = torch.nan
            grads[0][-1][-1].view(-1)[3] = torch.inf

        def work(transport: Transport) -> tuple[list[Tensor], Count, Count]:
            with Device() if self.on_device else contextlib.nullcontext():
                return step(self.handles[transport.rank], grads[transport.rank], self.on_device)

        found = self.world.run(work)
        if self.on_device:
            one_order(self.networks)
        return found

    def move(self, to_device: bool) -> Job:
        """A job with the same state on the other device, by way of a checkpoint on the CPU."""
        other = Job(self.case, self.shape, to_device)
        with Device():
            for mine, theirs in zip(self.handles, other.handles):
                theirs.load_state_dict(_tree(mine.state_dict()))
        return other


def _tree(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _tree(value) for name, value in state.items()}
    return down(state).clone() if isinstance(state, Tensor) else state


def same(case: Case, ours: list[Any], theirs: list[Any], what: str) -> None:
    """The results of all ranks are the same as on the CPU."""
    for (mine, *_), (other, *_) in zip(ours, theirs, strict=True):
        for bucket, (a, b) in enumerate(zip(mine, other, strict=True)):
            if case.method in ("powersgd", "acpsgd"):  # products of matrices have no fixed order
                torch.testing.assert_close(a, b, msg=lambda text: f"{case}, {what}: {text}")
            else:
                equal = torch.equal(a.view(torch.uint8), b.view(torch.uint8))
                assert equal, f"{case}, {what}: bucket {bucket} differs by {(a - b).abs().max()}"


# What the tests run ------------------------------------------------------------------------------------


def compare(name: str) -> None:
    """Two steps of a method with each of its partners are those on the CPU."""
    for place, case in enumerate(cases_of(name)):
        _same_steps(case, Shape(2 if place else 3, 2, 1, 1), torch.float32)


def compare_dtype(name: str, dtype: torch.dtype) -> None:
    """The same for gradients of another dtype, with the default partners."""
    _same_steps(cases_of(name)[0], SMALL, dtype)


def _same_steps(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    ours, theirs = Job(case, shape), Job(case, shape, on_device=False)
    for number in range(2):
        same(case, ours.step(number, dtype), theirs.step(number, dtype), f"step {number}, {dtype}")


def moved(name: str) -> None:
    """A step on one device and the next on the other give what two steps on the CPU give."""
    case = cases_of(name)[0]
    for to_device in (True, False):
        first, whole = Job(case, SMALL, not to_device), Job(case, SMALL, on_device=False)
        first.step(0), whole.step(0)
        same(case, first.move(to_device).step(1), whole.step(1), f"moved {'up' if to_device else 'down'}")


def skipped(name: str) -> None:
    """A step with gradients that are not finite is skipped, and what is owed is what it was before, as on the CPU."""
    case, shape = cases_of(name)[0], Shape(2, 2, 1, 1)
    ours, theirs = Job(case, shape), Job(case, shape, on_device=False)
    for job in (ours, theirs):
        job.step(0), job.step(1, spoil=True)
        assert [handle.stats().skipped for handle in job.handles] == [1, 1], case
    for mine, other in zip(ours.handles, theirs.handles):
        for parameter in ("bucket0.0", "bucket1.0"):
            owed, expected = mine.session.residual(parameter), other.session.residual(parameter)
            assert (owed is None) == (expected is None)
            if owed is not None and expected is not None:
                torch.testing.assert_close(down(owed), expected, rtol=1e-4, atol=1e-5)
    results = [of_rank for of_rank, *_ in ours.step(2)]
    assert all(torch.equal(a, b) and a.isfinite().all() for a, b in zip(*results)), case


def measure(name: str) -> tuple[list[int], str]:
    """Host waits of rank 0 during backward and at the end, and launches, of a small and of a large job; and where.

    Of the second step: the first allocates and compares layouts.
    """
    figures, text = [], ""
    for shape in (SMALL, LARGE):
        job = Job(cases_of(name)[0], shape)
        job.step(0)
        _, before, after = job.step(1)[0]
        launches = before.launches.total() + after.launches.total()
        figures += [before.waits.total(), after.waits.total(), launches]
        text = f"--- during backward\n{before.lines()}\n--- at the end\n{after.lines()}"
    return figures, text
