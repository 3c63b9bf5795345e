"""LoCo: an averaged error in 8 bits does what full error feedback does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import grace_dl as grace
from grace_dl.algebra.named import build
from grace_dl.errors import ConfigError
from grace_dl.handle import ManualHandle
from grace_dl.memory.loco import LocoMemory
from values import not_none, total

LOCO = build("int4", memory="loco", communicator="allgather", dense_below=0)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def state_bytes(handle: ManualHandle) -> int:
    return sum(
        tensor.nbytes
        for memory in handle.session.memories().values()
        for slots in memory.state.values()
        for tensor in slots.values()
    )


def test_the_state_is_a_quarter_of_a_residual():
    handles = [grace.manual(LOCO.but(memory=memory)) for memory in ("loco", "residual")]
    for handle in handles:
        handle.step(normal(100_000), "w")
    loco, residual = map(state_bytes, handles)
    assert residual == 400_000
    assert loco < 0.26 * residual


def off(method: grace.Method, steps: int) -> float:
    """How far the sum of the results is from that of the gradients, in gradients."""
    handle = grace.manual(method)
    given = got = torch.zeros(4000)
    for step in range(steps):
        gradient = normal(4000, seed=step % 7) * normal(4000, seed=50).exp()
        given, got = given + gradient, got + handle.step(gradient, "w")
    return float((got - given).norm() / gradient.norm())


def test_errors_stay_bounded_and_close_to_full_feedback():
    """Without a memory they grow with the square root of the steps; averaged ones are 1 / (1 - decay) times as large at most."""
    none, residual, loco = (
        (off(LOCO.but(memory=memory), 100), off(LOCO.but(memory=memory), 400))
        for memory in ("none", "residual", "loco")
    )
    assert none[1] > 1.6 * none[0]
    assert loco[1] < 1.5 * loco[0]
    assert loco[1] < 0.5 * none[1]
    assert residual[1] < loco[1] < 5 * residual[1]


def loss_after(method: grace.Method, rate: float = 0.5) -> float:
    """Logistic regression with labels that a few of the inputs decide, on 3 ranks."""
    world = grace.simulated(3, timeout=60)
    handles = [grace.manual(method, transport=t) for t in world]
    inputs = [normal(64, 300, seed=rank) for rank in range(3)]
    labels = [(x[:, :5].sum(1) > 0).float() for x in inputs]

    def work(t):
        weights = torch.zeros(300, requires_grad=True)
        for _ in range(80):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                inputs[t.rank] @ weights, labels[t.rank]
            )
            (gradient,) = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                weights -= rate * handles[t.rank].step(gradient, "w")
        return loss.item()

    return sum(world.run(work)) / 3


def test_training_in_four_bits_is_like_full_error_feedback():
    exact = loss_after(grace.none())
    assert loss_after(LOCO) == pytest.approx(loss_after(LOCO.but(memory="residual")), rel=0.02)
    assert loss_after(LOCO) == pytest.approx(exact, rel=0.03)


def test_by_hand():
    handle = grace.manual(grace.custom(Truncated(), LocoMemory(decay=0.75), dense_below=0))
    assert handle.step(torch.tensor([1.5]), "w").tolist() == [1]
    (slots,) = (memory.state["w"] for memory in handle.session.memories().values())
    assert slots["scales"].item() == 0.125  # (1 - 0.75) * 0.5
    assert handle.session.residual("w") == pytest.approx(0.5)
    assert handle.step(torch.tensor([1.9]), "w").tolist() == [2]  # of 2.025


class Truncated(grace.Compressor):
    """Drops the fraction."""

    elementwise = True

    def compress(self, tensor, name):
        return [tensor.trunc()], tensor.shape

    def decompress(self, payload, ctx):
        return payload[0].view(ctx)


def test_a_reset_drops_the_error():
    handle = grace.manual(LOCO.but(reset=3))
    for step in range(6):
        handle.step(normal(500, seed=step), "w")
        assert bool(not_none(handle.session.residual("w")).any()) == (step % 3 != 2)


@pytest.mark.parametrize("way", ["allgather", "alltoall"])
def test_another_number_of_ranks(way):
    method = LOCO.but(communicator=way)
    world = grace.simulated(4, timeout=20)
    handles = [grace.manual(method, transport=t) for t in world]
    world.run(lambda t: [handles[t.rank].step(normal(9000, seed=10 * t.rank + s), "w") for s in range(3)])
    owed = total(not_none(h.session.residual("w")) for h in handles) / 4
    states = [handle.state_dict() for handle in handles]
    world = grace.simulated(3, timeout=20)
    others = [grace.manual(method, transport=t) for t in world]
    for handle in others:
        handle.load_state_dict(states)
    left = total(not_none(h.session.residual("w")) for h in others) / 3
    assert torch.allclose(left, owed, atol=1e-5)
    results = world.run(lambda t: others[t.rank].step(torch.zeros(9000), "w"))
    assert all(torch.equal(results[0], other) for other in results)
    assert results[0].any()


@pytest.mark.parametrize("settings", [{"decay": 1}, {"decay": -0.1}, {"reset": 0}, {"reset": 1.5}], ids=str)
def test_bad_settings(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        grace.int4(memory="loco", **settings)
