"""Plain averages of narrow dtypes, and tensors whose elements are not where they seem to be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import grace_dl as grace
from grace_dl import simulated
from grace_dl.errors import UnsupportedError
from grace_dl.kernels import of
from grace_dl.methods.topk import TopKCompressor
from values import not_none

LARGE = 40_000.0
"""In float16 the sum over two ranks overflows, the mean does not."""


@pytest.mark.parametrize("text", ["none", "bf16", "powersgd:1"])
@pytest.mark.parametrize("size", [2, 3])
def test_means_of_float16_that_are_in_range_are_finite(text, size):
    world = simulated(size, timeout=20)

    def work(transport: Any) -> torch.Tensor:
        handle = grace.manual(text, transport=transport)
        handle.step(torch.full((4, 64), LARGE, dtype=torch.float16), "w")
        handle.detach()
        return handle.step(torch.full((4, 64), LARGE, dtype=torch.float16), "w")

    for result in world.run(work):
        assert result.isfinite().all()


def half_optimizer(rank: int, world: int) -> list[float]:
    model = nn.Linear(8, 8, bias=False, dtype=torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grace.attach(optimizer, grace.none(), named_parameters=model.named_parameters())
    (model.weight * LARGE).sum().backward()
    return not_none(model.weight.grad)[0, :2].tolist()


def test_an_optimizer_averages_float16(launch):
    assert launch(half_optimizer, 2) == [[LARGE, LARGE]] * 2


def test_tensors_without_memory_are_rejected():
    with FakeTensorMode():
        fake = torch.ones(2048)
    for use in (
        lambda: grace.manual("topk").step(fake, "layer.weight"),
        lambda: of(fake),
        lambda: TopKCompressor(0.1).compress(fake, "w"),
    ):
        with pytest.raises(UnsupportedError, match="FakeTensor"):
            use()


def sharded(rank: int, world: int) -> str:
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(64, 64)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = grace.attach(optimizer, "topk:0.1,dense_below=0", named_parameters=model.named_parameters())
    try:
        model(torch.ones(1, 64)).sum().backward()
    except UnsupportedError as error:
        return str(error)
    finally:
        handle.close()
    return "accepted"


def test_an_optimizer_of_a_sharded_model_is_rejected_with_the_remedy(launch):
    assert all("attach to the model" in answer for answer in launch(sharded, 2))
