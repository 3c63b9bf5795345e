"""What compression holds between steps: the state its method needs, frames for payloads, and nothing more."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from grace_dl import acpsgd, grace_from_params

WORLD = 2


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of memory behind tensors, by address."""
    found = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in found if storage.nbytes()}


def live() -> dict[int, int]:
    gc.collect()
    return storages(o for o in gc.get_objects() if isinstance(o, Tensor))


def held(rank: int, world: int, params: dict[str, Any], front: str) -> dict[str, float]:
    """Bytes after some steps, in sizes of the model: by slot of state, and `other`."""
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(5)))
    size = sum(p.nbytes for p in model.parameters())
    plain = torch.optim.SGD(model.parameters(), lr=0.01)
    x, net = torch.randn(4, 512), model
    before = live()
    if front == "ddp":
        net = DistributedDataParallel(model, bucket_cap_mb=2, gradient_as_bucket_view=True)
        grc = grace_from_params(params)
        grc.attach(net)
    else:
        method, *_ = (name for name, stands in acpsgd.METHODS.items() if stands == params["compressor"])
        settings = {key: value for key, value in params.items() if key != "compressor"}
        optimizer = acpsgd.DistributedOptimizer(plain, model.named_parameters(), method=method, **settings)
        grc = optimizer.communicator
    for _ in range(5):
        plain.zero_grad()
        net(x).square().mean().backward()
        plain.step()
    after = live()
    of_model = storages(p.grad for p in model.parameters() if p.grad is not None)
    found = {k: v for k, v in after.items() if k not in before and k not in of_model}
    result: dict[str, float] = {}
    for label, memory in grc._memories().items():
        for slots in memory.state.values():
            for slot, tensor in slots.items():
                name = slot if label == "memory" else f"{label} {slot}"
                nbytes = found.pop(tensor.untyped_storage().data_ptr())
                result[name] = result.get(name, 0.0) + nbytes / size
    return {**result, "other": sum(found.values()) / size}


FACTORS = 4 * (512 + 512) / (512 * 512)
"""Both factors of rank 4 of a square layer, in sizes of the layer."""

CASES = [
    ({"compressor": "acpsgd", "rank": 4}, {"e": 1.0, "p": FACTORS / 2, "q": FACTORS / 2}, 0.01),
    ({"compressor": "powersgd", "rank": 4}, {"e": 1.0, "q": FACTORS / 2}, 0.01),
    # Momentum and what is not sent yet; momentum also for the parameters that travel dense.
    ({"compressor": "dgc", "compress_ratio": 0.001}, {"m": 1.0, "v": 1.0}, 0.02),
    ({"compressor": "topk", "compress_ratio": 0.01}, {"e": 1.0}, 0.06),
    # Frames of a quarter each: what leaves and what arrives, and the slice of the average this rank sends on.
    (
        {"compressor": "int8", "memory": "residual"},
        {"e": 1.0, "second e": 1.0 / WORLD},
        0.25 * (2 + 1 / WORLD) + 0.05,
    ),
    ({"compressor": "int8"}, {}, 0.25 * (2 + 1 / WORLD) + 0.05),
    ({"compressor": "fp16"}, {}, 0.01),
    ({"compressor": "none"}, {}, 0.01),
]


def check(found: dict[str, float], state: dict[str, float], other: float) -> None:
    assert set(found) - {"other"} == set(state), found
    for slot, expected in state.items():
        assert found[slot] == pytest.approx(expected, rel=0.01), found
    assert found["other"] <= other, found


@pytest.mark.parametrize(("params", "state", "other"), CASES, ids=lambda v: str(v)[:50])
def test_ddp_holds_only_the_state(
    launch: Any, params: dict[str, Any], state: dict[str, float], other: float
) -> None:
    for found in launch(held, WORLD, params, "ddp"):
        check(found, state, other)


@pytest.mark.parametrize(("params", "state", "other"), CASES[:2], ids=lambda v: str(v)[:50])
def test_the_optimizer_holds_only_the_state(
    launch: Any, params: dict[str, Any], state: dict[str, float], other: float
) -> None:
    for found in launch(held, WORLD, params, "optimizer"):
        check(found, state, other)
