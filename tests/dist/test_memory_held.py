"""What compression holds between steps: the state its method needs, frames for payloads, and nothing more."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import grace_dl as grace

WORLD = 2


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of memory behind tensors, by address."""
    found = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in found if storage.nbytes()}


def live() -> dict[int, int]:
    gc.collect()
    return storages(o for o in gc.get_objects() if isinstance(o, Tensor))


def held(rank: int, world: int, text: str, target: str) -> dict[str, float]:
    """Bytes after some steps, in sizes of the model: by slot of state, and `other`."""
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(5)))
    size = sum(p.nbytes for p in model.parameters())
    plain = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(4, 512)
    net: nn.Module = model
    method = grace.parse(text)
    before = live()
    if target == "ddp":
        net = ddp = DistributedDataParallel(model, bucket_cap_mb=2, gradient_as_bucket_view=True)
        handle = grace.attach(ddp, method)
    else:
        handle = grace.attach(plain, method, named_parameters=model.named_parameters())
    for _ in range(5):
        plain.zero_grad()
        net(x).square().mean().backward()
        plain.step()
    after = live()
    of_model = storages(p.grad for p in model.parameters() if p.grad is not None)
    found = {k: v for k, v in after.items() if k not in before and k not in of_model}
    result: dict[str, float] = {}
    for label, memory in handle.session.memories().items():
        for slots in memory.state.values():
            for slot, tensor in slots.items():
                name = f"second {slot}" if label.endswith("/second") else slot
                nbytes = found.pop(tensor.untyped_storage().data_ptr())
                result[name] = result.get(name, 0.0) + nbytes / size
    return {**result, "other": sum(found.values()) / size}


FACTORS = 4 * (512 + 512) / (512 * 512)
"""Both factors of rank 4 of a square layer, in sizes of the layer."""

CASES = [
    ("acpsgd:4", {"e": 1.0, "p": FACTORS / 2, "q": FACTORS / 2}, 0.01),
    ("powersgd:4", {"e": 1.0, "q": FACTORS / 2}, 0.01),
    # Momentum and what is not sent yet; momentum also for the parameters that travel dense.
    ("dgc:0.001", {"m": 1.0, "v": 1.0}, 0.02),
    ("topk:0.01", {"e": 1.0}, 0.06),
    # Frames of a quarter each: what leaves and what arrives, and the slice of the average this rank sends on.
    (
        "int8:memory=residual,communicator=alltoall",
        {"e": 1.0, "second e": 1.0 / WORLD},
        0.25 * (2 + 1 / WORLD) + 0.05,
    ),
    ("int8:communicator=alltoall", {}, 0.25 * (2 + 1 / WORLD) + 0.05),
    ("fp16", {}, 0.01),
    ("none", {}, 0.01),
]


FRAMES = {"none": 1.0, "fp16": 0.5}
"""With an optimizer gradients do not lie together, so that what DDP sends from its buckets needs a frame."""


def check(found: dict[str, float], state: dict[str, float], other: float) -> None:
    assert set(found) - {"other"} == set(state), found
    for slot, expected in state.items():
        assert found[slot] == pytest.approx(expected, rel=0.01), found
    assert found["other"] <= other, found


@pytest.mark.parametrize(("text", "state", "other"), CASES, ids=str)
def test_ddp_holds_only_the_state(launch: Any, text: str, state: dict[str, float], other: float) -> None:
    for found in launch(held, WORLD, text, "ddp"):
        check(found, state, other)


@pytest.mark.parametrize(("text", "state", "other"), CASES, ids=str)
def test_the_optimizer_holds_only_the_state(
    launch: Any, text: str, state: dict[str, float], other: float
) -> None:
    for found in launch(held, WORLD, text, "optimizer"):
        check(found, state, other + FRAMES.get(text, 0.0))


def growth(rank: int, world: int) -> int:
    """Bytes that are held after many steps, each with another number of elements sent, and not after half of them."""
    handle, gradient = grace.manual("threshold:0.5,dense_below=0"), torch.linspace(0, 1, 4000)

    def held(first: int, last: int) -> int:
        for step in range(first, last):
            handle.step(gradient * (0.5 + step / 1000), "w")
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = held(0, 400)
        return held(400, 1200) - before
    finally:
        tracemalloc.stop()


def test_counts_that_vary_are_not_kept(launch: Any) -> None:
    (found,) = launch(growth, 1)
    assert found < 20_000
