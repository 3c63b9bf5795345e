"""EF21: what its papers claim, and what the memory keeps through changes of method, of loss scale and of ranks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import grace_dl as grace
from grace_dl.algebra.named import build
from grace_dl.errors import ConfigError
from grace_dl.memory.ef21 import Ef21Memory
from values import not_none, total

EF21 = build("topk", 0.2, memory="ef21", dense_below=0)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def train(method: grace.Method, steps: int, rate: float, noise: float = 0.0) -> tuple[Tensor, Tensor]:
    """Minimise the mean of quadratics with very different minima on 4 ranks; returns the point reached and the minimum."""
    world = grace.simulated(4, timeout=60)
    handles = [grace.manual(method, transport=t) for t in world]
    minima = [10 * normal(200, seed=rank) for rank in range(4)]

    def work(t):
        generator = torch.Generator().manual_seed(100 + t.rank)
        x = torch.zeros(200)
        for _ in range(steps):
            gradient = x - minima[t.rank] + noise * torch.randn(200, generator=generator)
            x = x - rate * handles[t.rank].step(gradient, "x")
        return x

    return world.run(work)[0], total(minima) / 4


def distance(method: grace.Method, steps: int, rate: float, noise: float = 0.0) -> float:
    x, minimum = train(method, steps, rate, noise)
    return float((x - minimum).norm() / minimum.norm())


def test_it_converges_at_a_constant_rate_where_others_stall():
    """Ranks' gradients do not vanish at the common minimum. EF21's differences do (Richtárik 2021, theorem 1)."""
    plain = distance(EF21.but(memory="none"), 150, 0.1)
    feedback = distance(EF21.but(memory="residual"), 150, 0.1)
    differences = distance(EF21, 150, 0.1)
    assert differences < 1e-4
    assert plain > 100 * differences
    assert feedback > 100 * differences


def test_momentum_averages_noise():
    """EF21-SGDM reaches a neighbourhood that is smaller than that of EF21 (Fatkhullin 2023, theorem 3)."""
    plain = distance(EF21, 200, 0.05, noise=10.0)
    momentum = distance(EF21.but(eta=0.1), 200, 0.05, noise=10.0)
    assert momentum < 0.7 * plain


def test_by_hand():
    handle = grace.manual(grace.topk(0.5, memory="ef21", dense_below=0))
    assert handle.step(torch.tensor([1.0, 4.0]), "w").tolist() == [0, 4]
    assert not_none(handle.session.residual("w")).tolist() == [1, 0]
    assert handle.step(torch.tensor([2.0, 4.5]), "w").tolist() == [2, 4]
    assert handle.step(torch.tensor([2.0, 0.5]), "w").tolist() == [2, 0.5]
    assert not_none(handle.session.residual("w")).tolist() == [0, 0]


def test_the_first_gradient_is_the_first_momentum():
    handle = grace.manual(grace.topk(1.0, memory="ef21", eta=0.25, dense_below=0))
    assert handle.step(torch.tensor([8.0]), "w").tolist() == [8]
    assert handle.step(torch.tensor([0.0]), "w").tolist() == [6]


def test_small_parameters_have_the_same_momentum():
    memory, means = Ef21Memory(eta=0.25), [torch.tensor([8.0]), torch.tensor([0.0])]
    for mean in means:
        memory.after_dense_([mean], ["bias"])
    assert [mean.item() for mean in means] == [8, 6]
    assert memory.residual("bias") is None


def test_a_change_of_method_delivers_what_the_last_result_lacked():
    handle = grace.manual(EF21)
    gradients = [normal(400, seed=seed) for seed in range(4)]
    for gradient in gradients[:3]:
        result = handle.step(gradient, "w")
    lacking = gradients[2] - result
    assert lacking.norm() > 0.1
    handle.detach()
    assert torch.allclose(handle.step(gradients[3], "w"), gradients[3] + lacking, atol=1e-5)
    assert handle.session.residual("w") is None


def test_a_change_of_the_ratio_keeps_the_estimate():
    handle = grace.manual(EF21)
    gradient = normal(400)
    for _ in range(2):
        before = handle.step(gradient, "w")
    handle.switch(EF21.but(ratio=0.1))
    after = handle.step(gradient, "w")
    assert int((after != before).sum()) <= 40
    assert torch.equal(after[before != 0], before[before != 0])


@pytest.mark.parametrize("method", [EF21, grace.adaq(0.2, memory="ef21", dense_below=0)], ids=str)
@pytest.mark.parametrize("sizes", [(4, 2), (2, 3), (3, 1)], ids=str)
def test_another_number_of_ranks(sizes, method):
    """All new ranks start from the same estimate, and the average of what they owe is the same."""
    old, new = sizes
    world = grace.simulated(old, timeout=20)
    handles = [grace.manual(method.but(eta=0.5), transport=t) for t in world]
    world.run(lambda t: [handles[t.rank].step(normal(5000, seed=10 * t.rank + s), "w") for s in range(3)])
    owed = total(not_none(h.session.residual("w")) for h in handles) / old
    states = [handle.state_dict() for handle in handles]
    world = grace.simulated(new, timeout=20)
    others = [grace.manual(method.but(eta=0.5), transport=t) for t in world]
    for handle in others:
        handle.load_state_dict(states)
    assert torch.allclose(total(not_none(h.session.residual("w")) for h in others) / new, owed, atol=1e-5)
    # With gradients that stay as they are, the estimate reaches their average: it has no part that no rank knows of.
    common = normal(5000, seed=99)

    def settle(t):
        for _ in range(60):
            result = others[t.rank].step(common + t.rank, "w")
        return result

    results = world.run(settle)
    assert (results[0] - common - (new - 1) / 2).abs().max() < 0.05
    assert all(torch.equal(results[0], other) for other in results)


def test_a_loss_scale_scales_the_estimate():
    handle, other = grace.manual(EF21), grace.manual(EF21)
    gradients = [normal(400, seed=seed) for seed in range(4)]
    for one, scale in ((handle, 1.0), (other, 4.0)):
        one.session.set_loss_scale(1.0)
        for gradient in gradients[:2]:
            one.step(gradient, "w")
        one.session.set_loss_scale(scale)
    for gradient in gradients[2:]:
        assert torch.equal(handle.step(gradient, "w") * 4, other.step(gradient * 4, "w"))


@pytest.mark.parametrize("eta", [0, -1, 1.5, "0.1", None])
def test_bad_settings(eta):
    with pytest.raises(ConfigError, match="eta"):
        Ef21Memory(eta)
    with pytest.raises(ConfigError, match="eta"):
        grace.topk(0.1, memory="ef21", eta=eta)
