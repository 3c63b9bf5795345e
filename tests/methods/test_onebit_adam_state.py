"""1-bit Adam and 0/1 Adam: replicas, saved state, steps that are skipped, and loss scales."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grace_dl as grace
from contract.cases import bits_equal
from grace_dl.digest import digest, sealed
from grace_dl.errors import ConfigError, StateError
from grace_dl.integrations.momentum_adam import Step
from methods.momentum_training import (
    MAKERS,
    backward,
    flat,
    network,
    onebit,
    same_on_all_ranks,
    train,
    zeroone,
)


def resuming(rank: int, world: int, which: str) -> Tensor:
    model = network()
    optimizer = MAKERS[which](model)
    train(optimizer, model, rank, 0, 15)  # 0/1 Adam: within a round
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    train(optimizer, model, rank, 15, 22)
    other = network(7)
    again = MAKERS[which](other)
    train(again, other, rank, 0, 2)
    again.load_state_dict(state)
    other.load_state_dict(weights)
    train(again, other, rank, 15, 22)
    assert bits_equal(flat(model), flat(other))
    for one in (optimizer, again):
        if isinstance(one, grace.ZeroOneAdam):
            one.synchronize()
            one.synchronize()
    assert bits_equal(flat(model), flat(other))
    with pytest.raises(StateError, match="rank"):
        again.load_state_dict({**state, "grace": {**state["grace"], "rank": rank + 1}})
    return flat(model)


@pytest.mark.parametrize("how", [copy.deepcopy, pickle.dumps])
def test_a_copy_would_not_exchange_and_is_refused(how):
    with pytest.raises(ConfigError, match="cannot be copied or pickled"):
        how(onebit(network()))


@pytest.mark.parametrize("which, world", [("onebit", 3), ("zeroone", 2), ("zeroone", 3)])
def test_replicas_are_identical_and_resume_exactly(launch, which, world):
    assert same_on_all_ranks(launch(resuming, world, which))


def skipping(rank: int, world: int, which: str, step: int) -> Tensor:
    model = network()
    optimizer = MAKERS[which](model)
    train(optimizer, model, rank, 0, step)
    before = copy.deepcopy(optimizer.state_dict()["state"]), flat(model)
    backward(model, rank, step)
    if rank == world - 1:
        next(model.parameters()).grad[0, 0] = float("inf")  # type: ignore[index]
    kind = optimizer._kind(step)
    optimizer.step()
    assert optimizer.grace.stats().skipped == (rank == world - 1 or kind is not Step.LOCAL)
    if kind is not Step.LOCAL:
        assert bits_equal(before[1], flat(model))
        for old, new in zip(before[0].values(), optimizer.state_dict()["state"].values()):
            assert old.keys() == new.keys() and old["step"] == new["step"]
            assert bits_equal(old["exp_avg"], new["exp_avg"])
    train(optimizer, model, rank, step + 1, step + 8)
    if isinstance(optimizer, grace.ZeroOneAdam):
        optimizer.synchronize()
    assert flat(model).isfinite().all()
    return flat(model)


@pytest.mark.parametrize("which, step", [("onebit", 2), ("onebit", 6), ("zeroone", 3), ("zeroone", 10)])
def test_no_rank_steps_with_a_gradient_that_is_not_finite(launch, which, step):
    assert same_on_all_ranks(launch(skipping, 2, which, step))


def partly_used(rank: int, world: int) -> Tensor:
    """A layer that one rank uses now and then, one that none uses, one that is added late."""
    model: Any = nn.ModuleDict({name: nn.Linear(40, 40) for name in ("always", "sometimes", "never")})
    optimizer = zeroone(model)
    never = model["never"].weight.detach().clone()
    late = nn.Linear(40, 40)
    for step in range(24):
        if step == 12:
            optimizer.add_param_group({"params": list(late.parameters()), "lr": 0.1})
        optimizer.zero_grad()
        x = torch.full((1, 40), 0.1 * (step + rank + 1))
        y = model["always"](x)
        if rank == 0 and step % 3 == 0:
            y = model["sometimes"](y)
        (y if step < 12 else late(y)).square().sum().backward()
        optimizer.step()
    optimizer.synchronize()
    assert bits_equal(model["never"].weight, never)
    assert optimizer.state[late.weight]["updates"] == 4  # a warm-up of its own
    assert optimizer.state[model["sometimes"].weight]["updates"] >= 2
    return torch.cat([flat(model), flat(late)])


def test_unused_and_late_parameters(launch):
    assert same_on_all_ranks(launch(partly_used, 2))


def freezing(rank: int, world: int, at_once: bool) -> Tensor:
    """A parameter is frozen within a round of local steps, on all ranks."""
    model: Any = network()
    optimizer = zeroone(model)
    train(optimizer, model, rank, 0, 13)
    frozen = model[0].weight
    assert "rate" in optimizer.state[frozen]
    frozen.requires_grad_(False)
    if at_once:
        optimizer.synchronize()
    else:
        train(optimizer, model, rank, 13, 14)
    assert "rate" not in optimizer.state[frozen]
    found = frozen.detach().clone()
    train(optimizer, model, rank, 14, 22)
    assert bits_equal(frozen, found)
    frozen.requires_grad_(True)
    train(optimizer, model, rank, 22, 26)
    optimizer.synchronize()
    return torch.cat([found.view(-1), flat(model)])


@pytest.mark.parametrize("at_once", [True, False], ids=["synchronize", "step"])
def test_a_parameter_that_is_frozen_within_a_round_is_the_same_on_all_ranks(launch, at_once):
    assert same_on_all_ranks(launch(freezing, 2, at_once))


def shrinking(rank: int, world: int, states: list[Any]) -> Tensor:
    model = network()
    optimizer = zeroone(model)
    optimizer.load_state_dict([state for _, state in states])
    model.load_state_dict(states[0][0])
    train(optimizer, model, rank, 13, 21)
    optimizer.synchronize()
    return flat(model)


def saving(rank: int, world: int) -> tuple[Any, Any]:
    model = network()
    optimizer = zeroone(model)
    train(optimizer, model, rank, 0, 13)
    with pytest.raises(StateError, match=r"synchronize\(\)"):
        optimizer.load_state_dict([optimizer.state_dict()] * world)
    optimizer.synchronize()
    return model.state_dict(), optimizer.state_dict()


def test_another_number_of_ranks(launch):
    states = launch(saving, 3)
    assert same_on_all_ranks(launch(shrinking, 2, states))


def scaling(rank: int, world: int) -> Tensor:
    """A scaler that finds infinity on one rank does not keep that rank from the exchange."""
    model, other = network(), network()
    optimizer, plain = onebit(model), onebit(other)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # type: ignore[attr-defined]
    for step in range(7):
        backward(model, rank, step)
        for p in model.parameters():
            p.grad.mul_(scaler.get_scale())  # type: ignore[union-attr]
        if step == 5 and rank == 0:
            next(model.parameters()).grad.fill_(float("inf"))  # type: ignore[union-attr]
        scaler.scale(torch.zeros(()))  # the scaler must have been used
        scaler.step(optimizer)
        scaler.update()
        if step != 5:
            train(plain, other, rank, step, step + 1)
    assert optimizer.grace.stats().skipped == 1
    assert torch.allclose(flat(model), flat(other), atol=1e-5)
    return flat(model)


def test_a_scaler(launch):
    assert same_on_all_ranks(launch(scaling, 2))


# All or nothing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", MAKERS)
def test_a_state_that_cannot_be_loaded_changes_nothing(which):
    model = network()
    optimizer = MAKERS[which](model)
    train(optimizer, model, 0, 0, 8)
    state = copy.deepcopy(optimizer.state_dict())
    train(optimizer, model, 0, 8, 13)
    before = digest(optimizer.state_dict())

    def refused(changed: dict[str, Any], error: type[Exception]) -> str:
        with pytest.raises(error) as caught:
            optimizer.load_state_dict(changed)
        assert digest(optimizer.state_dict()) == before
        return str(caught.value)

    steps = {**state["grace"]["steps"], "0.weight": "eight"}
    assert "damaged" in refused({**state, "grace": sealed({**state["grace"], "steps": steps})}, StateError)
    assert "no field 'state'" in refused({k: v for k, v in state.items() if k != "state"}, StateError)
    refused({**state, "param_groups": []}, ValueError)

    def fail(_: Any) -> None:
        raise MemoryError("no more memory")

    hook = optimizer.register_load_state_dict_post_hook(fail)
    refused(state, MemoryError)
    hook.remove()
    optimizer.load_state_dict(state)
    assert digest(optimizer.state_dict()) == digest(state)


@pytest.mark.parametrize("which", MAKERS)
def test_the_state_of_parameters_with_other_shapes_is_rejected(which):
    model, other = nn.Linear(4, 4), nn.Linear(8, 8)
    first, second = MAKERS[which](model), MAKERS[which](other)
    model(torch.ones(1, 4)).sum().backward()
    first.step()
    before = digest(second.state_dict())
    with pytest.raises(StateError, match=r"'weight' has shape \(4, 4\), the parameter \(8, 8\)"):
        second.load_state_dict(first.state_dict())
    assert digest(second.state_dict()) == before
