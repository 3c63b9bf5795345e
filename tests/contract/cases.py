"""What the contract suite runs over: every registered method with its permitted partners.

A method gets all of it by being registered. The tables below hold only what a test cannot read off the registry: what
a paper promises of a built-in method. A method they do not name is held to the general points.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace_dl import catalog, manual, simulated
from grace_dl.algebra.named import Named
from grace_dl.algebra.named import build as build_method
from grace_dl.communicator.base import Communicator
from grace_dl.compressor.base import Compressor
from grace_dl.handle import ManualHandle
from grace_dl.key import Key
from grace_dl.transport.base import Transport

METHODS = catalog.methods()
NAMES = list(METHODS)

SHAPE = (64, 72)
"""A matrix, so that low-rank methods take it; uneven slices at 3 and 4 ranks, and no multiple of blocks of 256 in them."""

VOTES = ("signsgd", "signum")
"""Results are votes, not averages."""

EXACT_SPARSE = ("topk", "threshold", "randomk", "dgc")
"""Send chosen elements as they are: what is left of those is exactly zero."""

LOW_RANK = ("powersgd", "acpsgd")

TWO_PHASES = ("alltoall", "sparse_allreduce")
"""Communicators whose owners encode averages once more."""

RATIO = 0.3
"""The share that sparsifiers send in these tests: of a small tensor, their defaults leave next to nothing."""


@dataclass(frozen=True)
class Case:
    """A method with a memory and a communicator it permits."""

    method: str
    memory: str
    communicator: str

    def value(self, **settings: Any) -> Named:
        """The method; a pair that warns is still a permitted one."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return build_method(
                self.method,
                memory=self.memory,
                communicator=self.communicator,
                **sized(self.method, settings),
            )

    def __str__(self) -> str:
        return f"{self.method}-{self.memory}-{self.communicator}"


def cases_of(name: str) -> list[Case]:
    info = METHODS[name]
    return [
        Case(name, memory, way)
        for memory in info.memories
        for way in catalog.communicators_of(info, catalog.MEMORIES[memory])
    ]


def sized(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with these tests' ratio, where a method has one and it is not given."""
    has_ratio = any(parameter.name == "ratio" for parameter in METHODS[name].parameters)
    return {"ratio": RATIO, **settings} if has_ratio else settings


BATCHES = [NAMES[start::4] for start in range(4)]
"""For tests on real processes, where a call costs more than what it runs."""

CASES = [case for name in NAMES for case in cases_of(name)]


def build(case: Case, transport: Transport | None = None, **settings: Any) -> ManualHandle:
    """A handle at work with the method of a case."""
    return manual(case.value(**settings), transport=transport)


def communicator(handle: ManualHandle, name: str = "layer.weight") -> Communicator:
    """What exchanges a parameter at a handle's next step."""
    return handle.session.communicator_of(name)


def owed(handle: ManualHandle, name: str = "layer.weight") -> Tensor | None:
    """What a handle still owes for a parameter, flat."""
    return handle.session.residual(name)


def gradients(
    ranks: int,
    steps: int,
    shape: Sequence[int] = SHAPE,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> list[list[Tensor]]:
    """`[rank][step]`: values of several magnitudes, alike in part over ranks as gradients are."""
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        x = torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
        return x * torch.rand(tuple(shape), generator=generator, dtype=torch.float64)

    common = [draw() for _ in range(steps)]
    return [[(c + draw()).to(dtype) for c in common] for _ in range(ranks)]


def slots(handle: ManualHandle) -> dict[str, Tensor]:
    """All that the memories of a handle hold, by part, memory, parameter and slot."""
    return {
        f"{part}/{label}/{name}/{slot}": value
        for part, memories in handle.state_dict()["parts"].items()
        for label, memory in memories.items()
        for name, of_name in memory.items()
        for slot, value in of_name.items()
    }


def run(
    size: int,
    case: Case,
    grads: Sequence[Sequence[Tensor]],
    name: str = "layer.weight",
    wrap: Callable[[Transport], Transport] | None = None,
    **settings: Any,
) -> tuple[list[list[Tensor]], list[ManualHandle]]:
    """Steps on a simulated world: results by rank and step, and the handles afterwards."""
    world = simulated(size, timeout=20)
    handles = [build(case, wrap(t) if wrap else t, **settings) for t in world]
    results = world.run(lambda t: [handles[t.rank].step(g, name) for g in grads[t.rank]])
    return results, handles


def same(results: Sequence[Sequence[Tensor]]) -> None:
    """All ranks have the same bits at every step."""
    for step, of_step in enumerate(zip(*results)):
        for rank, other in enumerate(of_step[1:], 1):
            assert bits_equal(of_step[0], other), f"rank {rank} differs from rank 0 at step {step}"


def bits_equal(a: Tensor, b: Tensor) -> bool:
    """Equal as bytes: NaN equals NaN, and -0.0 is not 0.0."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    raw = (t.contiguous().view(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(*raw)


def payloads_equal(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return len(a) == len(b) and all(bits_equal(x, y) for x, y in zip(a, b))


def decoded(compressor: Compressor, payload: list[Tensor], ctx: Any, like: Tensor) -> Tensor:
    """What a peer makes of one payload: its value before the average over ranks."""
    out = torch.zeros_like(like)
    if like.numel():
        compressor.accumulate_(out, payload, ctx)
    return out


def codec(name: str, **settings: Any) -> Compressor:
    return METHODS[name].cls(**sized(name, settings))


def one_rounds() -> list[str]:
    """Methods whose payload is a function of one tensor alone."""
    return [name for name in NAMES if not METHODS[name].cls.multi_round]


def key(step: int = 0, name: str = "layer.weight", rank: int = 0) -> Key:
    return Key(name, step=step, rank=rank)
