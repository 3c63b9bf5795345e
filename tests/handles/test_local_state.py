"""Saved state of local steps: resuming, other numbers of workers, and what cannot be loaded."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grace_dl as grace
from contract.cases import bits_equal
from grace_dl.digest import digest, sealed
from grace_dl.errors import StateError
from handles.local_training import alike, flat, inner, local, mean_of, nesterov, network
from handles.targets import LocalStepsTarget

SETTINGS = [
    {"method": "int8:memory=residual", "every": 4},
    {"method": "topk:0.1,dense_below=0", "every": 4, "delay": 3, "merge": 0.5, "outer": nesterov},
    {"method": "none", "every": 4, "fragments": 2, "delay": 2, "outer": nesterov},
    {"method": "int4", "every": 4, "anchor_dtype": torch.bfloat16},
]


def made(model: nn.Module, optimizer: torch.optim.Optimizer, settings: dict[str, Any]) -> grace.LocalSteps:
    chosen = dict(settings)
    if "outer" in chosen:
        chosen["outer"] = chosen["outer"](model)
    return grace.LocalSteps(model, optimizer, chosen.pop("method"), **chosen)


def resumed(rank: int, world: int, settings: dict[str, Any], at: int, model_first: bool = False) -> None:
    model = network()
    optimizer = inner(model)
    outer = made(model, optimizer, settings)
    saved = None
    for step in range(14):
        if step == at:
            file = io.BytesIO()
            torch.save([model.state_dict(), optimizer.state_dict(), outer.state_dict()], file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
        local(model, optimizer, rank, step)
        outer.step()
    assert saved is not None
    again = network()
    theirs = inner(again)
    if model_first:
        again.load_state_dict(saved[0])
    second = made(again, theirs, settings)
    if not model_first:
        again.load_state_dict(saved[0])
    theirs.load_state_dict(saved[1])
    second.load_state_dict(saved[2])
    for step in range(at, 14):
        local(again, theirs, rank, step)
        second.step()
    assert bits_equal(flat(model), flat(again))
    assert all(bits_equal(a, b) for a, b in zip(model.buffers(), again.buffers()))


@pytest.mark.parametrize("at", [4, 6])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: str(s["method"]))
def test_a_run_resumes_exactly_within_a_round_and_while_an_exchange_travels(launch, settings, at):
    launch(resumed, 2, settings, at)


@pytest.mark.parametrize("settings", SETTINGS[::3], ids=lambda s: str(s["method"]))
def test_the_model_may_be_loaded_before_local_steps_are_created(launch, settings):
    """Creation gives all ranks the parameters of rank 0; each returns to its own."""
    launch(resumed, 2, settings, 6, True)


def started_from_rank_0(rank: int, world: int, saved: list[Any]) -> Tensor:
    """Only rank 0 has a model to continue from."""
    model: Any = network()[0:1]
    with torch.no_grad():
        model[0].weight.fill_(float(rank))
    if rank == 0:
        model.load_state_dict(saved[0][0])
    outer = grace.LocalSteps(model, inner(model), "topk:0.1,dense_below=0", every=2)
    outer.load_state_dict([state for _, state in saved])
    return flat(model)


def test_parameters_that_no_state_was_saved_with_are_not_put_back(launch):
    saved = launch(saving_states, 2)
    found = launch(started_from_rank_0, 2, saved)
    assert alike(found) and bits_equal(found[0].view(-1)[:5], saved[0][0]["0.weight"].reshape(-1)[:5])


def wrapped(rank: int, world: int) -> None:
    from torch.nn.parallel import DistributedDataParallel

    settings = {"method": "topk:0.1,dense_below=0", "every": 1}
    wrappers: list[Any] = [torch.compile, DistributedDataParallel]
    for wrap in wrappers:
        model, other = network()[0:1], network()[0:1]
        with made(wrap(model), inner(model), settings) as outer:
            outer.step()
            state = outer.state_dict()
            assert sorted(state["local"]["anchor"]) == ["0.bias", "0.weight"]
            with made(other, inner(other), settings) as plain:
                plain.load_state_dict(state)
                # As saved by versions whose names were those of the wrapper.
                anchor = {f"module.{name}": kept for name, kept in state["local"]["anchor"].items()}
                plain.load_state_dict(sealed({**state, "local": {**state["local"], "anchor": anchor}}))
                assert plain.local_steps == 1


def test_a_state_does_not_depend_on_wrappers(launch):
    launch(wrapped, 1)


def saving_states(rank: int, world: int) -> tuple[dict[str, Any], dict[str, Any]]:
    model: Any = network()[0:1]
    outer = grace.LocalSteps(model, optimizer := inner(model), "topk:0.1,dense_below=0", every=2)
    for step in range(4):
        local(model, optimizer, rank, step)
        outer.step()
    return model.state_dict(), outer.state_dict()


def continuing(rank: int, world: int, weights: dict[str, Any], states: list[dict[str, Any]]) -> Tensor:
    model: Any = network()[0:1]
    outer = grace.LocalSteps(model, optimizer := inner(model), "topk:0.1,dense_below=0", every=2)
    model.load_state_dict(weights)
    outer.load_state_dict(states)
    assert outer.local_steps == 4
    owed = {name: outer.session.residual(name) for name, _ in model.named_parameters()}
    for step in range(4, 6):
        local(model, optimizer, rank, step)
        outer.step()
    found = [r.view(-1) for r in owed.values() if r is not None]
    return torch.stack([torch.cat(found), flat(model)])


def test_the_number_of_workers_may_change_between_rounds(launch):
    saved = launch(saving_states, 2)
    states = [state for _, state in saved]
    before = mean_of([torch.cat([s["e"].view(-1) for s in _memory(state).values()]) for state in states])
    answers = launch(continuing, 3, saved[0][0], states)
    torch.testing.assert_close(mean_of([answer[0] for answer in answers]), before)
    assert alike([answer[1] for answer in answers])


def test_states_of_workers_that_are_gone_may_be_missing(launch):
    """The residuals of those that are there keep their weight of one in three."""
    saved = launch(saving_states, 3)
    states = [state for _, state in saved]
    held = [torch.cat([s["e"].view(-1) for s in _memory(state).values()]) for state in states]
    answers = launch(continuing, 2, saved[0][0], [states[2], states[0]])
    torch.testing.assert_close(mean_of([answer[0] for answer in answers]), (held[0] + held[2]) / 3)
    assert alike([answer[1] for answer in answers])


def test_states_of_different_rounds_are_rejected():
    model: Any = network()[0:1]
    outer = grace.LocalSteps(model, optimizer := inner(model), "int8", every=1)
    states = [outer.state_dict()]
    local(model, optimizer, 0, 0)
    outer.step()
    with pytest.raises(StateError, match="anchors differ"):
        outer.load_state_dict([*states, outer.state_dict()])


def _memory(state: dict[str, Any]) -> dict[str, Any]:
    (part,) = state["parts"].values()
    memory: dict[str, Any] = part["memory"]
    return memory


# What cannot be loaded ----------------------------------------------------------------------------------------


def test_the_state_of_another_model_or_object_is_rejected():
    model, other = network(), nn.Linear(3, 3)
    outer = grace.LocalSteps(model, inner(model), "int8", every=5)
    state = outer.state_dict()
    with pytest.raises(StateError, match="another model"):
        grace.LocalSteps(other, inner(other), "int8", every=5).load_state_dict(state)
    with pytest.raises(StateError, match="every=5"):
        grace.LocalSteps(model, inner(model), "int8", every=6).load_state_dict(state)
    with pytest.raises(StateError, match="outer"):
        grace.LocalSteps(model, inner(model), "int8", every=5, outer=nesterov(model)).load_state_dict(state)
    with pytest.raises(StateError, match="no local steps"):
        outer.load_state_dict(grace.manual("int8").state_dict())


# All or nothing -----------------------------------------------------------------------------------------------


def two_groups(model: nn.Module) -> torch.optim.Optimizer:
    first, *rest = model.parameters()
    return torch.optim.SGD([{"params": [first]}, {"params": rest}], lr=0.7, momentum=0.9, nesterov=True)


def trained(outer: Any = nesterov, steps: int = 6) -> grace.LocalSteps:
    """After six steps an exchange of the fourth is under way."""
    model = network()
    settings = {"method": "topk:0.1,dense_below=0", "every": 4, "delay": 3, "outer": outer}
    handle = made(model, optimizer := inner(model), settings)
    for step in range(steps):
        local(model, optimizer, 0, step)
        handle.step()
    return handle


def damaged(what: str) -> dict[str, Any]:
    """A state with a digest that matches and a part that cannot be loaded."""
    state = trained(steps=10).state_dict()
    (text,) = state["parts"]
    part, inside = state["local"], state["parts"][text]["memory"]
    arrived, outer = part["arrived"], part["outer"]
    changed: dict[str, Any] = {
        "steps": {"local": {**part, "steps": "ten"}},
        "anchor": {"local": {**part, "anchor": {n: _Shape(a.shape) for n, a in part["anchor"].items()}}},
        "results": {"local": {**part, "arrived": {**arrived, "results": {}}}},
        "fragment": {"local": {**part, "arrived": {**arrived, "fragment": 3}}},
        "outer groups": {"local": {**part, "outer": {**outer, "param_groups": []}}},
        "outer state": {"local": {**part, "outer": {**outer, "state": None}}},
        "residual": {"parts": {text: {"memory": {**inside, "0.weight": {"e": "zeros"}}}}},
        "method's steps": {"steps": {"0.weight": "ten"}},
    }
    return sealed({**state, **changed[what]})


class _Shape:
    """Not a tensor."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape

    def __repr__(self) -> str:
        return f"{tuple(self.shape)}"


def held(state: dict[str, Any]) -> str:
    """A digest of what `load_state_dict` restores."""
    return digest(LocalStepsTarget.loaded(state))


def refused(handle: grace.LocalSteps, state: Any) -> str:
    """The error, after which everything must be as before."""
    before = handle.state_dict()["digest"]
    with pytest.raises(StateError) as error:
        handle.load_state_dict(state)
    assert handle.state_dict()["digest"] == before
    return str(error.value)


@pytest.mark.parametrize(
    "what",
    [
        "steps",
        "anchor",
        "results",
        "fragment",
        "outer groups",
        "outer state",
        "residual",
        "method's steps",
    ],
)
def test_a_state_that_cannot_be_loaded_changes_nothing(what):
    refused(trained(), damaged(what))


def test_the_state_of_another_outer_optimizer_changes_nothing():
    said = refused(trained(), trained(two_groups).state_dict())
    assert "number of parameter groups" in said and "give `outer` the class" in said
    handle = trained()

    def fail(_: Any) -> None:
        raise RuntimeError("no more memory")

    assert handle._outer is not None
    hook = handle._outer.register_load_state_dict_post_hook(fail)
    state = trained(steps=10).state_dict()
    assert "no more memory" in refused(handle, state)
    hook.remove()
    handle.load_state_dict(state)
    assert held(handle.state_dict()) == held(state)


def test_a_state_kept_in_memory_stays_as_it_is():
    """Training goes on after it was taken, and after it was loaded."""
    model = network()
    handle = made(model, optimizer := inner(model), {"method": "int8", "every": 1, "outer": nesterov})
    local(model, optimizer, 0, 0)
    handle.step()
    state = handle.state_dict()
    for step in (1, 2):
        local(model, optimizer, 0, step)
        handle.step()
        handle.load_state_dict(state)
        assert held(handle.state_dict()) == held(state)
