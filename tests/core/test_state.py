"""Saving and going on: six steps are three, a save, a load into fresh objects, and three more."""

from __future__ import annotations

import io

import pytest
import torch

from contract.cases import CASES, Case, bits_equal, build, communicator, gradients, owed
from grace_dl import custom, manual, simulated
from grace_dl.errors import PeerError, StateError
from grace_dl.memory.residual import ResidualMemory
from grace_dl.methods.topk import TopKCompressor
from values import not_none


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def states_equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(states_equal(a[k], b[k]) for k in a)
    return bits_equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_resumed_run_repeats_every_bit(case):
    size, half = 2, 3
    grads = gradients(size, 2 * half)
    world = simulated(size, timeout=20)
    whole = [build(case, t) for t in world]
    expected = world.run(lambda t: [whole[t.rank].step(g, "w") for g in grads[t.rank]])

    first_world = simulated(size, timeout=20)
    first = [build(case, t) for t in first_world]
    first_world.run(lambda t: [first[t.rank].step(g, "w") for g in grads[t.rank][:half]])
    saved = [through_a_file(handle.state_dict()) for handle in first]

    second_world = simulated(size, timeout=20)
    second = [build(case, t) for t in second_world]
    for handle, state in zip(second, saved):
        handle.load_state_dict(state)
    got = second_world.run(lambda t: [second[t.rank].step(g, "w") for g in grads[t.rank][half:]])
    for rank in range(size):
        for a, b in zip(expected[rank][half:], got[rank]):
            assert bits_equal(a, b)
        assert states_equal(whole[rank].state_dict(), second[rank].state_dict())


def test_what_is_saved_is_a_copy():
    case = Case("topk", "residual", "allgather")
    handle = build(case)
    (a, b) = gradients(1, 2)[0]
    handle.step(a, "w")
    state = handle.state_dict()
    (part,) = state["parts"].values()
    kept = part["memory"]["w"]["e"].clone()
    handle.step(b, "w")
    assert torch.equal(part["memory"]["w"]["e"], kept)
    other = build(case)
    other.load_state_dict(state)
    other.step(b, "w")
    assert torch.equal(part["memory"]["w"]["e"], kept)


def saved_by(case, size=2):
    world = simulated(size, timeout=20)
    handles = [build(case, t) for t in world]
    grads = gradients(size, 1)
    world.run(lambda t: handles[t.rank].step(grads[t.rank][0], "w"))
    return [handle.state_dict() for handle in handles]


def test_another_ranks_state_is_refused():
    case = Case("topk", "residual", "allgather")
    states = saved_by(case)
    world = simulated(2)
    with pytest.raises(StateError, match=r"rank 1 of 2.*rank 0 of 2"):
        build(case, world[0]).load_state_dict(states[1])
    three = simulated(3)
    with pytest.raises(StateError, match=r"of 2.*of 3"):
        build(case, three[0]).load_state_dict(states[0])


@pytest.mark.parametrize(
    "other",
    [
        Case("qsgd", "none", "allgather"),
        Case("topk", "none", "allgather"),
        Case("int8", "residual", "alltoall"),
    ],
    ids=str,
)
def test_state_of_something_else_is_refused_and_changes_nothing(other):
    state = saved_by(Case("topk", "residual", "allgather"))[0]
    handle = build(other, simulated(2)[0])
    before = handle.state_dict()
    with pytest.raises(StateError):
        handle.load_state_dict(state)
    assert states_equal(before, handle.state_dict())


@pytest.mark.parametrize(
    "damage", ["format", "method", "parts", "steps", "rank", "world_size", "loss_scale", "carried"]
)
def test_incomplete_state_is_refused(damage):
    case = Case("topk", "residual", "allgather")
    state = dict(saved_by(case)[0])
    del state[damage]
    handle = build(case, simulated(2)[0])
    with pytest.raises(StateError):
        handle.load_state_dict(state)


def test_state_of_another_model_is_refused_when_used():
    case = Case("topk", "residual", "allgather")
    handle = build(case)
    handle.step(torch.ones(64, 72), "w")
    with pytest.raises(StateError, match="'w'"):
        handle.step(torch.ones(10, 10), "w")


def test_another_seed_is_refused():
    case = Case("qsgd", "none", "allgather")
    handle = build(case, seed=1)
    handle.step(torch.ones(64), "w")
    with pytest.raises(StateError, match="seed"):
        build(case, seed=2).load_state_dict(handle.state_dict())


def test_a_failed_step_keeps_the_memory():
    """A compressor that raises on one rank: that rank says why, the others that a peer failed, and nothing is lost."""

    class Failing(TopKCompressor):
        bad = False

        def encode_from(self, source, key, out=None):
            if self.bad:
                raise ValueError("not today")
            return super().encode_from(source, key, out)

    world = simulated(2, timeout=20)
    handles = [manual(custom(Failing(0.1), ResidualMemory()), transport=t) for t in world]
    grads = gradients(2, 2)

    def work(t):
        handle = handles[t.rank]
        handle.step(grads[t.rank][0], "w")
        before = not_none(owed(handle, "w")).clone()
        compressor = communicator(handle, "w").compressor
        assert isinstance(compressor, Failing)
        compressor.bad = t.rank == 1
        with pytest.raises(ValueError if t.rank == 1 else PeerError):
            handle.step(grads[t.rank][1], "w")
        assert torch.allclose(before, not_none(owed(handle, "w")), atol=1e-6)
        compressor.bad = False
        return handle.step(grads[t.rank][1], "w")

    a, b = world.run(work)
    assert bits_equal(a, b)
