"""`torch.compile` of attached models, in each of its modes for DDP."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import grace_dl as grace
from ddp_models import EXACT, LOSSY, MLP, batches, build, flat, train
from grace_dl.errors import ConfigError


def wide() -> MLP:
    """Several of the smallest buckets that `torch.compile` allows."""
    return MLP(640)


def compiled(rank: int, world: int, mode: str, before: bool) -> torch.Tensor:
    with torch._dynamo.config.patch(optimize_ddp=mode):
        plain = flat(train(DDP(build(wide), bucket_cap_mb=1), batches(rank, 4)))
        found = []
        for method in (EXACT, LOSSY):
            model: Any = DDP(build(wide), bucket_cap_mb=1)
            if before:
                handle = grace.attach(model, method)
                model = torch.compile(model, backend="aot_eager")
            else:
                model = torch.compile(model, backend="aot_eager")
                handle = grace.attach(model, method)
            found.append(flat(train(model, batches(rank, 4))))
            assert handle.stats().steps == 4
    torch._dynamo.reset()
    exact, lossy = found
    assert torch.allclose(plain, exact, atol=1e-6) and not torch.equal(plain, lossy)
    return lossy


@pytest.mark.parametrize("before", [True, False], ids=["attached before", "attached after"])
@pytest.mark.parametrize(
    "mode", ["ddp_optimizer", "no_optimization", "python_reducer_without_compiled_forward"]
)
def test_a_compiled_model(launch: Any, mode: str, before: bool) -> None:
    first, second = launch(compiled, 2, mode, before, timeout=120)
    assert torch.equal(first, second)


def python_reducer(rank: int, world: int) -> None:
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        model = DDP(build())
    with pytest.raises(ConfigError, match=r"python_reducer.*ddp_optimizer"):
        grace.attach(model, LOSSY)


def test_the_python_reducer_is_rejected(launch: Any) -> None:
    launch(python_reducer, 2)
