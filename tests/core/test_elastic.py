"""A job continues on a different number of ranks: what ranks have not sent is conserved in the average."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.cases import CASES, SHAPE, Case, bits_equal, gradients
from grace_dl import Memory, custom, digest, manual, register, simulated
from grace_dl.algebra.base import Method
from grace_dl.algebra.text import as_method
from grace_dl.errors import ConfigError, StateError
from grace_dl.handle import ManualHandle
from grace_dl.memory.conversion import convert
from grace_dl.memory.dgc import DgcMemory
from grace_dl.methods.int4 import Int4Compressor
from grace_dl.methods.topk import TopKCompressor
from grace_dl.registry import unregister
from grace_dl.session import Session
from grace_dl.transport.simulated import World
from values import not_none, total

CHANGES = [(2, 3), (3, 1)]
STEPS = 3


def trained(method: Method, size: int, names: tuple[str, ...] = ("w",)) -> list[ManualHandle]:
    """Handles of all ranks after a few steps."""
    world = simulated(size, timeout=20)
    handles = [manual(method, transport=t) for t in world]
    grads = gradients(size, STEPS)
    world.run(lambda t: [handles[t.rank].step(g, name) for g in grads[t.rank] for name in names])
    return handles


def resumed(
    method: Method, states: list[dict[str, Any]], size: int, world: World | None = None
) -> list[ManualHandle]:
    handles = [manual(method, transport=t) for t in world or simulated(size, timeout=20)]
    for handle in handles:
        handle.load_state_dict(states)
    return handles


def unsent(handles: list[ManualHandle], name: str = "w") -> Tensor:
    """What the next average would gain if everything were sent."""
    found = [handle.session.residual(name) for handle in handles]
    return total(r.double() for r in found if r is not None) / len(handles)


@pytest.mark.parametrize(("old", "new"), CHANGES, ids=lambda n: str(n))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_average_of_residuals_is_conserved(case: Case, old: int, new: int) -> None:
    method = case.value()
    before = trained(method, old)
    world = simulated(new, timeout=20)
    after = resumed(method, [handle.state_dict() for handle in before], new, world)
    if before[0].session.residual("w") is not None:
        assert torch.allclose(unsent(before), unsent(after), rtol=1e-5, atol=1e-6)
    assert all(handle.session.state.steps == {"w": STEPS} for handle in after)
    results = world.run(lambda t: after[t.rank].step(gradients(new, 1)[t.rank][0], "w"))
    assert all(bits_equal(results[0], result) and bool(result.isfinite().all()) for result in results)


COMPOSED = [
    "by_parameter(w=topk:0.3; v=powersgd:2; default=int8:memory=residual,communicator=alltoall)",
    "schedule(0=none; 2=topk:0.1)",
    "schedule(0=topk:0.1; 3=powersgd:2)",
    "dgc:0.05,warmup_stages=2,warmup_steps=2",
]


@pytest.mark.parametrize("text", COMPOSED)
def test_compositions(text: str) -> None:
    """2 → 3 → 1 → 2 ranks: every parameter, and what a previous stage left behind."""
    method, names = as_method(text), ("w", "v", "u")
    handles = trained(method, 2, names)
    expected = {name: unsent(handles, name) for name in names}
    for size in (3, 1, 2):
        handles = resumed(method, [handle.state_dict() for handle in handles], size)
        for name in names:
            assert torch.allclose(unsent(handles, name), expected[name], rtol=1e-5, atol=1e-6), (size, name)
        assert all(handle.session.state.steps == dict.fromkeys(names, STEPS) for handle in handles)


@pytest.fixture
def following() -> Iterator[Method]:
    """A method whose default communicator follows the number of ranks."""

    @register("following", memories=("residual",), communicator={1: "allgather", 3: "alltoall"})
    class Following(Int4Compressor):
        """Gathers among two ranks, and is dealt out among more."""

    yield as_method("following")
    unregister("following")


def test_state_moves_when_the_default_communicator_changes(following: Method) -> None:
    """2 → 3 → 4 → 2 → 1 ranks, with steps in between."""
    handles = trained(following, 2)
    for size in (3, 4, 2, 1):
        expected, steps = unsent(handles), handles[0].session.state.steps["w"]
        world = simulated(size, timeout=20)
        handles = resumed(following, [handle.state_dict() for handle in handles], size, world)
        assert handles[0].session.communicator_of("w").name == ("alltoall" if size > 2 else "allgather")
        assert torch.allclose(unsent(handles), expected, rtol=1e-5, atol=1e-6), size
        grads = gradients(size, STEPS)
        mean = total(g.double() for of_rank in grads for g in of_rank).view(-1) / size
        results = world.run(lambda t: [handles[t.rank].step(g, "w") for g in grads[t.rank]])  # noqa: B023
        assert all(bits_equal(a, b) for of_rank in results for a, b in zip(results[0], of_rank))
        received = total(result.double() for result in results[0]).view(-1)
        assert torch.allclose(received + unsent(handles), mean + expected, rtol=1e-4, atol=1e-5), size
        assert handles[0].session.state.steps["w"] == steps + STEPS


def test_state_of_one_communicator_loads_into_another(following: Method) -> None:
    """As when a method's default changes with a new version: each rank loads its own state."""
    gathered = trained(as_method("int4:memory=residual,communicator=allgather"), 3)
    states = []
    for handle in gathered:
        state = {key: value for key, value in handle.state_dict().items() if key != "digest"}
        for field in ("communicators", "parts"):
            state[field] = {str(following): next(iter(state[field].values()))}
        states.append(digest.sealed({**state, "method": str(following)}))
    after = [manual(following, transport=t) for t in simulated(3)]
    for handle, state in zip(after, states):
        handle.load_state_dict(state)
        assert handle.session.communicator_of("w").name == "alltoall"
    assert torch.allclose(unsent(after), unsent(gathered), rtol=1e-5, atol=1e-6)


def test_a_rule_for_the_default_communicator_covers_every_number_of_ranks() -> None:
    with pytest.raises(ConfigError, match="no communicator for one rank"):
        register("partial", communicator={3: "alltoall"})(Int4Compressor)
    register("impossible", communicator={1: "allgather", 3: "alltoall"})(type("Whole", (TopKCompressor,), {}))
    try:
        with pytest.raises(ConfigError, match="cannot go through alltoall"):
            as_method("impossible")
    finally:
        unregister("impossible")


def test_what_is_carried_to_the_next_method_is_conserved() -> None:
    handles = trained(as_method("topk:0.1"), 3)
    expected = unsent(handles)
    for handle in handles:
        handle.switch("none")
    after = resumed(as_method("none"), [handle.state_dict() for handle in handles], 2)
    assert torch.allclose(unsent(after), expected, rtol=1e-5, atol=1e-6)


def test_new_ranks_start_from_zero_and_momenta_are_averaged() -> None:
    old = [{"w": {"m": torch.full((4,), m), "v": torch.full((4,), v)}} for m, v in ((1.0, 2.0), (3.0, 4.0))]
    after = [convert(DgcMemory(), old, rank, 3)["w"] for rank in range(3)]
    assert [slots["m"][0].item() for slots in after] == [2.0, 2.0, 2.0]
    assert [slots["v"][0].item() for slots in after] == [3.0, 6.0, 0.0]


def test_the_same_number_of_ranks_is_exact_in_any_order() -> None:
    method = as_method("onebit")
    states = [handle.state_dict() for handle in trained(method, 3)]
    for handle, state in zip(resumed(method, states[::-1], 3), states):
        assert handle.state_dict()["digest"] == state["digest"]


# What cannot be loaded --------------------------------------------------------------------------------------


def states_of(size: int = 2) -> list[dict[str, Any]]:
    return [handle.state_dict() for handle in trained(as_method("topk:0.1"), size)]


def refused(states: Any, size: int = 3) -> str:
    handle = manual("topk:0.1", transport=simulated(size)[0])
    before = handle.state_dict()
    with pytest.raises(StateError) as error:
        handle.load_state_dict(states)
    assert handle.state_dict() == before
    return str(error.value)


def test_incomplete_sets_of_states_are_refused() -> None:
    states = states_of(3)
    assert "ranks [0, 2]" in refused([states[0], states[2]])
    assert "job with 3 ranks" in refused([*states, states[0]])
    assert "no saved state" in refused([])
    assert "no saved state" in refused([*states[:2], None])
    other = [handle.state_dict() for handle in trained(as_method("topk:0.1"), 3, ("w", "v"))]
    assert "differ in steps" in refused([*states[:2], other[2]])


def test_a_state_of_one_rank_alone_names_the_remedy() -> None:
    states = states_of(2)
    assert "every rank must save its own state" in refused(states[1], size=2)
    assert "a list with the states of all ranks" in refused(states[0], size=3)


def test_undeclared_state_that_differs_is_refused() -> None:
    class Undeclared(Memory):
        def compensate(self, tensor: Tensor, name: str) -> Tensor:
            return tensor + self.slot(name, "mine", tensor)

        def update(self, tensor: Tensor, name: str, *rest: Any) -> None:
            self.slot(name, "mine", tensor).copy_(tensor)

    method = custom(TopKCompressor(0.1), Undeclared())
    states = [handle.state_dict() for handle in trained(method, 2)]
    with pytest.raises(StateError, match=r"'mine' of 'w'.*Undeclared does not declare.*`roles`"):
        resumed(method, states, 3)


def test_a_flipped_bit_is_refused() -> None:
    state = states_of(2)[0]
    (text,) = state["parts"]
    numel = SHAPE[0] * SHAPE[1]
    for _ in range(50):
        damaged = copy.deepcopy(state)
        e = damaged["parts"][text]["memory"]["w"]["e"].view(-1).view(torch.uint8)
        e[random.randrange(4 * numel)] ^= 1 << random.randrange(8)
        assert "does not match its digest" in refused(damaged, size=2)
    assert "does not match its digest" in refused({**state, "steps": {"w": STEPS + 1}}, size=2)


def test_state_moves_to_the_device_of_its_gradient() -> None:
    memory = DgcMemory()
    memory.load_state_dict({"w": {"m": torch.ones(4), "v": torch.ones(4)}})
    memory.slot("w", "m", torch.empty(4, device="meta"))
    assert {slot.device.type for slot in memory.state["w"].values()} == {"meta"}
    state = manual("topk:0.1").session.state
    state.carry("w", torch.ones(4))
    owed = state.owed("w", torch.empty(4, device="meta"))
    assert owed is not None and owed.device.type == "meta" and state.carried["w"].device.type == "meta"


def test_ranks_that_stay_keep_the_weight_of_their_residual() -> None:
    """An engine that restarts with other ranks, as elastic Horovod does, while this process goes on."""
    handle = trained(as_method("topk:0.1"), 2)[0]
    before = handle.session.residual("w")
    assert before is not None
    expected = before.clone() * 1.5
    handle.session.rejoin(simulated(3)[0])
    after = handle.session.residual("w")
    assert after is not None and torch.allclose(after, expected)


def test_a_rank_that_joins_has_nothing_to_carry() -> None:
    """As when Horovod restarts: the schedule begins anew, and plain averaging pays what the old ranks have not sent."""
    method = as_method("schedule(0=none; 2=topk:0.5,dense_below=0)")
    world, larger = simulated(2, timeout=20), simulated(3, timeout=20)
    for transport in (*world, *larger):
        transport.renewable = True
    sessions = world.run(lambda t: Session(method, t))
    grads = gradients(3, 6)
    world.run(lambda t: [sessions[t.rank].step(g, "w") for g in grads[t.rank][:4]])
    before = [not_none(session.residual("w")).view(SHAPE) for session in sessions]
    assert all(owed.any() for owed in before)

    def work(transport: Any) -> Tensor:
        if transport.rank == 2:
            session = Session(method, transport)
        else:
            session = sessions[transport.rank]
            session.rejoin(transport)
        return session.step(grads[transport.rank][4], "w")

    first, *others = larger.run(work)
    assert all(bits_equal(first, other) for other in others)
    # They keep their weight in the average: what was owed to one of two is 3/2 of that among three.
    expected = total(g[4] for g in grads) / 3 + total(before) / 2
    assert torch.allclose(first, expected, atol=1e-5)
