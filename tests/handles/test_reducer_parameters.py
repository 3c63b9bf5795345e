"""Gradients of an optimizer: which parameters take part in a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import grace_dl as grace
from handles.reduced import (
    Net,
    attached,
    batch,
    every_method,
    flat,
    network,
    plain,
    replicas_agree,
    step,
)


def freezing(model: Net, optimizer: torch.optim.Optimizer, number: int) -> None:
    """Freezes and thaws layers: at the beginning, in the middle and at the end of backward."""
    plans = {0: "bc", 1: "abc", 2: "a", 3: "c", 4: "ac", 5: "b", 6: "abc"}
    trained = plans.get(number, "abc")
    for name, layer in model.named_children():
        layer.requires_grad_(name in trained)


def frozen_and_thawed(rank: int, world: int, text: str) -> None:
    model, optimizer, handle = attached(text)
    for number in range(9):
        freezing(model, optimizer, number)
        step(model, optimizer, rank, number)
        assert replicas_agree(model), f"replicas differ after step {number}"
    if text == "none":
        assert torch.allclose(flat(model), plain(rank, world, freezing, 9), atol=1e-6)
    assert handle.stats().steps == 9


@every_method
@pytest.mark.parametrize("world", [2, 3])
def test_frozen_and_thawed_layers(launch: Any, world: int, text: str) -> None:
    launch(frozen_and_thawed, world, text)


def thawed_after_attach(rank: int, world: int) -> None:
    """Frozen when attached: the last layer, which backward reaches before any parameter that is known."""
    model = network()
    model.c.requires_grad_(False)
    model, optimizer, _ = attached("none", model)
    model.c.requires_grad_(True)
    step(model, optimizer, rank, 0)
    assert replicas_agree(model)
    everything = network()
    everything.requires_grad_(False)
    everything, optimizer, _ = attached("none", everything)
    everything.requires_grad_(True)
    step(everything, optimizer, rank, 0)
    assert replicas_agree(everything)
    assert torch.equal(flat(everything), flat(model))


def test_layers_thawed_after_attach(launch: Any) -> None:
    launch(thawed_after_attach, 2)


def thawed_between_passes(rank: int, world: int) -> None:
    model, optimizer, _ = attached("none", backward_passes=2)
    model.c.requires_grad_(False)
    model(batch(rank, 0)).square().mean().backward()
    model.c.requires_grad_(True)
    model(batch(rank, 1)).square().mean().backward()
    optimizer.step()
    assert replicas_agree(model)
    assert model.c.weight.grad is not None


def test_a_layer_thawed_between_two_passes(launch: Any) -> None:
    launch(thawed_between_passes, 2)


def added(rank: int, world: int, text: str, named: bool) -> None:
    model = network()
    first = [*model.b.parameters(), *model.c.parameters()]
    optimizer = torch.optim.SGD(first, lr=0.1)
    names = model.named_parameters() if named else None
    handle = grace.attach(optimizer, text, named_parameters=names)
    step(model, optimizer, rank, 0)
    optimizer.add_param_group({"params": list(model.a.parameters()), "lr": 0.01})
    for number in range(1, 4):
        model.a.zero_grad()
        step(model, optimizer, rank, number)
        assert replicas_agree(model)
    expected = "a.weight" if named else "group1.0"
    assert handle.session.state.steps[expected] == 3


@every_method
@pytest.mark.parametrize("named", [True, False])
def test_parameters_added_later(launch: Any, text: str, named: bool) -> None:
    launch(added, 2, text, named)


def removed(rank: int, world: int, text: str) -> None:
    """The layer that backward reaches first leaves the optimizer, and later the optimizer itself is replaced."""
    model = network()
    groups = [{"params": list(layer.parameters())} for layer in (model.a, model.b, model.c)]
    model, optimizer, first = attached(text, model, groups)
    step(model, optimizer, rank, 0)
    del optimizer.param_groups[2]
    for number in range(1, 4):
        model.c.zero_grad()
        step(model, optimizer, rank, number)
        assert replicas_agree(model)
        assert first.stats().steps == number + 1
    del optimizer
    model, optimizer, second = attached(text, model)
    for number in range(4, 7):
        step(model, optimizer, rank, number)
        assert replicas_agree(model)
    assert (first.stats().steps, second.stats().steps) == (4, 3)


@every_method
def test_parameters_that_leave_the_optimizer(launch: Any, text: str) -> None:
    launch(removed, 2, text)


def in_turn(rank: int, world: int, text: str) -> None:
    """Layouts that come back: ranks must compare them at the same steps, or one waits for the other for ever."""
    garbage = [object() for _ in range(rank * 1000)]  # addresses differ between ranks
    model, optimizer, _ = attached(text)
    for number in range(30):
        model.a.requires_grad_(number % 2 == 0)
        step(model, optimizer, rank, number)
    assert replicas_agree(model)
    del garbage


@pytest.mark.parametrize("text", ["acpsgd:2", "powersgd:2", "topk:0.1"])
def test_freezing_and_thawing_in_turn(launch: Any, text: str) -> None:
    launch(in_turn, 2, text, timeout=60, group_timeout=20)


def unused(rank: int, world: int, text: str) -> None:
    """A layer that no rank uses, one that one rank uses, and a rank that runs no backward pass at all."""
    model, optimizer, handle = attached(text)
    x = batch(rank, 0)
    model.c(model.b(x)).square().mean().backward()  # nobody uses `a`
    assert model.a.weight.grad is None
    optimizer.step()
    assert "a.weight" not in handle.session.state.steps
    optimizer.zero_grad()
    hidden = model.a(x) if rank == 0 else x  # rank 0 uses `a`
    model.c(model.b(hidden)).square().mean().backward()
    assert model.a.weight.grad is not None
    optimizer.step()
    assert replicas_agree(model)
    optimizer.zero_grad()
    if rank == 0:
        model(x).square().mean().backward()
    optimizer.step()
    assert replicas_agree(model)


@every_method
@pytest.mark.parametrize("world", [2, 3])
def test_unused_parameters(launch: Any, world: int, text: str) -> None:
    launch(unused, world, text)


def owing_while_unused(rank: int, world: int) -> None:
    """After detach(), a parameter that no rank uses goes on owing until it is used."""
    model, optimizer, handle = attached("topk:0.1,dense_below=0")
    step(model, optimizer, rank, 0)
    owed = handle.session.residual("a.weight")
    assert owed is not None and owed.abs().sum() > 0
    handle.detach()
    optimizer.zero_grad()
    model.c(model.b(batch(rank, 1))).square().mean().backward()
    optimizer.step()
    assert model.a.weight.grad is None
    assert torch.equal(handle.session.residual("a.weight"), owed)
    assert handle.session.residual("c.weight") is None
    step(model, optimizer, rank, 2)
    assert handle.session.residual("a.weight") is None
    assert replicas_agree(model)


def test_an_unused_parameter_goes_on_owing(launch: Any) -> None:
    launch(owing_while_unused, 2)
