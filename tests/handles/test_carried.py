"""Residuals that some ranks carry and others do not, when plain averaging follows a method with a memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import grace_dl as grace
from ddp_models import attach, batches, build, flat, train
from values import not_none

METHODS = ["topk:0.1,dense_below=0", "int8:memory=residual", "efsignsgd", "powersgd:2", "dgc:0.1"]
LATER = ["none", "fp16", "detach"]


def everyone(thing: object) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, thing)
    return found


def first_step_skipped(rank: int, world: int, later: str) -> None:
    """One rank's first gradient is not finite: the others have a memory already, which holds nothing."""
    for text in METHODS:
        handle = grace.manual(text)
        x = torch.full((64, 64), float("nan") if rank == 1 else 1.0)
        handle.step(x, "w")
        handle.detach() if later == "detach" else handle.switch(later)
        for _ in range(2):
            assert torch.allclose(
                handle.step(torch.full((64, 64), rank + 1.0), "w"), torch.tensor(1.5), atol=1e-3
            )
        handle.close()


@pytest.mark.parametrize("later", LATER)
def test_after_a_first_step_that_one_rank_skipped(launch: Any, later: str) -> None:
    launch(first_step_skipped, 2, later)


def model_skipped(rank: int, world: int, later: str) -> torch.Tensor:
    model, handle = attach(build(), "topk:0.05,dense_below=0")
    inputs = batches(rank, 4)
    model(inputs[0].fill_(float("inf") if rank == 0 else 1.0)).square().mean().backward()
    model.zero_grad()
    handle.detach() if later == "detach" else handle.switch(later)
    return flat(train(model, inputs[1:]))


@pytest.mark.parametrize("later", LATER)
def test_models_after_a_first_step_that_one_rank_skipped(launch: Any, later: str) -> None:
    first, *others = launch(model_skipped, 3, later)
    assert first.isfinite().all()
    assert all(torch.equal(first, other) for other in others)


def replaced(rank: int, world: int) -> float:
    """A rank is lost between `detach` and the next step: what the others carry is paid, and the new one carries nothing."""
    old = grace.manual("topk:0.1,dense_below=0")
    torch.manual_seed(rank)
    old.step(torch.randn(64, 64), "w")
    old.detach()
    (state, *_) = everyone(old.state_dict())
    owed = everyone(not_none(old.session.residual("w")))[0]
    new = grace.manual("none")
    new.session.load_state_dict([state], partial=True)
    total = new.step(torch.zeros(64, 64), "w")
    assert torch.allclose(total, owed.view(64, 64) / world, atol=1e-6)
    assert not new.step(torch.zeros(64, 64), "w").any()
    return total.double().sum().item()


def test_a_rank_that_replaces_one_carries_nothing(launch: Any) -> None:
    first, second = launch(replaced, 2)
    assert first == second


def resumed(rank: int, world: int) -> None:
    """A state that was saved before the carried residual was paid resumes exactly, on three ranks as well."""
    outcomes = []
    for resume in (False, True):
        torch.manual_seed(rank)
        handle = grace.manual("int8:memory=residual")
        for _ in range(3):
            handle.step(torch.randn(640), "w")
        handle.switch("none")
        if resume:
            state = handle.state_dict()
            handle = grace.manual("none")
            handle.load_state_dict(state)
        outcomes.append(torch.stack([handle.step(torch.randn(640), "w") for _ in range(2)]))
    assert torch.equal(*outcomes)


def test_a_state_saved_before_the_residual_is_paid(launch: Any) -> None:
    launch(resumed, 3)
