"""Gradients of an optimizer: backward passes that do not go as planned, and what can be attached."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor

import grace_dl as grace
from grace_dl.errors import ConfigError
from handles.reduced import (
    Fails,
    attached,
    batch,
    every_method,
    flat,
    network,
    replicas_agree,
    step,
)
from values import not_none

# Backward passes --------------------------------------------------------------------------------------------


def raised(rank: int, world: int, text: str) -> None:
    """A pass raises on every rank, with buckets sent already; the batch is skipped, and training goes on."""
    model, optimizer, handle = attached(text)
    other, other_optimizer, _ = attached(text)
    for number in range(6):
        Fails.armed = number in (2, 3)
        if not Fails.armed:
            step(model, optimizer, rank, number)
            step(other, other_optimizer, rank, number)
            assert replicas_agree(model), f"replicas differ after step {number}"
            continue
        before = {name: residual_of(handle, name) for name, _ in model.named_parameters()}
        # Gradients that stay in place are overwritten by the next pass.
        optimizer.zero_grad(set_to_none=number == 2)
        with pytest.raises(RuntimeError, match="out of memory"):
            model(batch(rank, number)).square().mean().backward()
        for name, kept in before.items():
            assert torch.allclose(residual_of(handle, name), kept, atol=1e-6), name
        handle.state_dict()  # nothing is under way any more
        Fails.armed = False
    assert handle.stats().steps == 4
    # Taking a step back rounds, so that an element may fall on the other side of a threshold.
    assert (flat(model) - flat(other)).abs().max() < 5e-2


def residual_of(handle: Any, name: str) -> Tensor:
    found = handle.session.residual(name)
    return torch.zeros(1) if found is None else found.clone()


@every_method
@pytest.mark.parametrize("world", [2, 3])
def test_training_goes_on_after_a_backward_pass_that_raised(launch: Any, world: int, text: str) -> None:
    launch(raised, world, text)


def stepped_after_raise(rank: int, world: int) -> None:
    """A step with what a failed pass left behind is a doubtful one, but replicas take it together."""
    model, optimizer, _ = attached("none")
    step(model, optimizer, rank, 0)
    Fails.armed = True
    with pytest.raises(RuntimeError, match="out of memory"):
        model(batch(rank, 1)).square().mean().backward()
    Fails.armed = False
    optimizer.step()
    assert replicas_agree(model)


def test_a_step_after_a_backward_pass_that_raised(launch: Any) -> None:
    launch(stepped_after_raise, 2)


def accumulated(rank: int, world: int, text: str) -> None:
    """Three passes a step are one pass over the sum of their losses."""
    model, optimizer, handle = attached(text, backward_passes=3)
    other, other_optimizer, _ = attached(text)
    for number in range(0, 9, 3):
        optimizer.zero_grad()
        for part in range(3):
            model(batch(rank, number + part)).square().mean().backward()
        optimizer.step()
        other_optimizer.zero_grad()
        torch.stack([other(batch(rank, number + part)).square().mean() for part in range(3)]).sum().backward()
        other_optimizer.step()
    assert handle.stats().steps == 3
    assert replicas_agree(model)
    if text == "none":
        assert torch.allclose(flat(model), flat(other), atol=1e-5)


@every_method
def test_gradient_accumulation(launch: Any, text: str) -> None:
    launch(accumulated, 2, text)


def too_few_passes(rank: int, world: int) -> None:
    """optimizer.step() exchanges what is there, as at the end of an epoch."""
    model, optimizer, handle = attached("none", backward_passes=4)
    model(batch(rank, 0)).square().mean().backward()
    optimizer.step()
    assert handle.stats().steps == 1
    assert replicas_agree(model)


def test_a_step_before_all_passes(launch: Any) -> None:
    launch(too_few_passes, 2)


@pytest.mark.parametrize("passes", [0, -1])
def test_impossible_numbers_of_passes(passes: int) -> None:
    with pytest.raises(ConfigError, match=f"backward_passes={passes}"):
        attached("none", backward_passes=passes)


def closures(rank: int, world: int) -> None:
    """LBFGS runs several passes within one step."""
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    handle = grace.attach(optimizer, "none", named_parameters=model.named_parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(batch(rank, 0)).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert handle.stats().steps > 2
    # LBFGS reads the loss, which differs between ranks, only to stop early.
    assert all(p.isfinite().all() for p in model.parameters())


def test_closures(launch: Any) -> None:
    launch(closures, 2)


# Attaching --------------------------------------------------------------------------------------------------


def cycles(rank: int, world: int) -> None:
    model, optimizer, first = attached("topk:0.1")
    with pytest.raises(ConfigError, match="already"):
        grace.attach(optimizer, "none")
    step(model, optimizer, rank, 0)
    first.close()
    hooks = [len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()]
    assert not any(hooks)
    optimizer.zero_grad()
    model(batch(rank, 1)).square().mean().backward()
    grads = [not_none(p.grad).clone() for p in model.parameters()]
    optimizer.step()
    assert all(torch.equal(not_none(p.grad), g) for p, g in zip(model.parameters(), grads))
    second = grace.attach(optimizer, "powersgd:1", named_parameters=model.named_parameters())
    step(model, optimizer, rank, 2)
    assert second.stats().steps == 1 and first.stats().steps == 1
    second.close()
    with grace.attach(optimizer, "none") as third:
        step(model, optimizer, rank, 3)
    assert third.stats().steps == 1


def test_attached_and_closed_twice(launch: Any) -> None:
    launch(cycles, 2)


def two_optimizers(rank: int, world: int) -> None:
    """A GAN: two models with the same names, one method, backward passes in turn and together."""
    method = grace.topk(0.1, dense_below=0)
    (g, optimizer_g, handle_g), (d, optimizer_d, handle_d) = attached(method), attached(method)  # type: ignore[arg-type]
    for number in range(3):
        optimizer_g.zero_grad()
        optimizer_d.zero_grad()
        (g(batch(rank, number)).square().mean() + d(batch(rank, number)).abs().mean()).backward()
        optimizer_g.step()
        step(d, optimizer_d, rank, number)
    assert replicas_agree(g) and replicas_agree(d)
    assert (handle_g.stats().steps, handle_d.stats().steps) == (3, 6)


def test_two_optimizers(launch: Any) -> None:
    launch(two_optimizers, 2)


def test_a_model_can_be_copied_and_saved() -> None:
    model, optimizer, _ = attached("topk:0.1")
    step(model, optimizer, 0, 0)
    twin = copy.deepcopy(model)
    torch.save(model, io.BytesIO())
    twin(batch(0, 0)).square().mean().backward()
    assert all(not p._post_accumulate_grad_hooks for p in twin.parameters())
    copy.deepcopy(optimizer).step()


@pytest.mark.parametrize(
    "named, message",
    [
        (lambda model: model.parameters(), "pairs"),
        (lambda model: model.b.named_parameters(), "not in named_parameters"),
        (lambda model: [("w", p) for p in model.parameters()], "two parameters are named 'w'"),
    ],
)
def test_wrong_names_are_refused(named: Any, message: str) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=message):
        grace.attach(optimizer, "none", named_parameters=named(model))
    assert all(not p._post_accumulate_grad_hooks for p in model.parameters())
    grace.attach(optimizer, "none", named_parameters=model.named_parameters())


def loss_scale(rank: int, world: int) -> None:
    """State follows a scaler; a step that overflows on one rank is skipped on all, and nothing of it stays."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=2)
    model, optimizer, handle = attached("topk:0.1,dense_below=0", scaler=scaler)
    other, other_optimizer, _ = attached("topk:0.1,dense_below=0")
    for number in range(6):
        optimizer.zero_grad()
        loss = model(batch(rank, number)).square().mean()
        if number == 3 and rank == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if number != 3:
            step(other, other_optimizer, rank, number)
    assert handle.stats().skipped == 1
    assert replicas_agree(model)
    assert torch.allclose(flat(model), flat(other), atol=1e-5)


def test_loss_scale(launch: Any) -> None:
    launch(loss_scale, 2)
