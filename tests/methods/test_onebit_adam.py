"""1-bit Adam and 0/1 Adam: against plain simulations of their rules, on real ranks, and on real images."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import grace_dl as grace
from contract.cases import bits_equal
from grace_dl.data.images import load_images
from grace_dl.errors import ConfigError, StateError
from grace_dl.integrations.momentum_adam import MomentumAdam, Step
from methods.momentum_training import (
    DECAY,
    LONGEST,
    LR,
    MAKERS,
    backward,
    flat,
    network,
    onebit,
    same_on_all_ranks,
    train,
    zeroone,
)

# What is computed ---------------------------------------------------------------------------------------------


def warming_up(rank: int, world: int) -> None:
    model = network(rank)  # takes the parameters of rank 0
    optimizer, other = onebit(model), network(0)
    plain = torch.optim.AdamW(other.parameters(), lr=LR, weight_decay=DECAY)
    grace.attach(plain, grace.none(), named_parameters=other.named_parameters())
    for step in range(4):
        backward(model, rank, step)
        optimizer.step()
        backward(other, rank, step)
        plain.step()
        assert bits_equal(flat(model), flat(other)), step


def test_the_warmup_is_plain_adam(launch):
    launch(warming_up, 2)


def simulated(optimizer: MomentumAdam, rank: int, world: int, steps: int) -> Tensor:
    """The rules of both papers without compression, all ranks in one process, one parameter vector each."""
    models = [network() for _ in range(world)]
    start, m, v, rate, updates = flat(models[0]), [torch.tensor(0.0)] * world, torch.tensor(0.0), 0.0, 0
    u, decay, here = [torch.tensor(0.0)] * world, 1.0, [flat(models[0])] * world
    for t in range(steps):
        for r, model in enumerate(models):
            nn.utils.vector_to_parameters(here[r], model.parameters())
            backward(model, r, t)
        grads = [torch.cat([p.grad.reshape(-1) for p in model.parameters()]) for model in models]  # type: ignore[union-attr]
        gamma = LR / (1 - 0.9 ** (t + 1))
        kind = optimizer._kind(t)
        if kind is Step.VARIANCE:
            mean = torch.stack(grads).mean(0)
            m, v, updates = [0.9 * m[0] + 0.1 * mean] * world, 0.999 * v + 0.001 * mean**2, updates + 1
        else:
            m = [0.9 * mine + 0.1 * g for mine, g in zip(m, grads)]
        scale = (v / (1 - 0.999**updates)).sqrt() + 1e-8
        directions = [(mine / scale).clamp(-LONGEST, LONGEST) for mine in m]
        u = [sent + gamma * mine for sent, mine in zip(u, directions)]
        rate, decay = rate + gamma, decay * (1 - LR * DECAY)
        if kind is Step.LOCAL:
            here = [x * (1 - LR * DECAY) - gamma * mine for x, mine in zip(here, directions)]
        else:
            average = torch.stack(u).mean(0)
            here = [start * decay - average] * world
            m, start, u = [average * scale / rate] * world, here[0], [torch.tensor(0.0)] * world
            rate, decay = 0.0, 1.0
    return here[rank]


def following(rank: int, world: int, which: str) -> None:
    model = network()
    optimizer = MAKERS[which](model, method=grace.none())
    for step in range(17):  # the last in the middle of a round
        train(optimizer, model, rank, step, step + 1)
        expected = simulated(optimizer, rank, world, step + 1)
        assert torch.allclose(flat(model), expected, atol=2e-5), (step, optimizer._kind(step))


@pytest.mark.parametrize("which", MAKERS)
def test_both_follow_their_rules(launch, which):
    launch(following, 2, which)


def test_the_order_of_steps():
    optimizer = zeroone(network(), warmup=14, variance_updates=2, local_steps=6, longest=4)
    letters = {Step.VARIANCE: "v", Step.EXCHANGE: "x", Step.LOCAL: "-"}
    kinds = "".join(letters[optimizer._kind(step)] for step in range(44))
    assert kinds[:14] == "vv" + "vxvx" + "vxxxvxxx"
    assert kinds[14:] == "xxxxxx" + "-x-x-x" + "---x-x" + "---x-x" + "---x-x"
    assert optimizer._kind(10**9) in (Step.EXCHANGE, Step.LOCAL)


def test_errors_are_fed_back_on_both_sides():
    """One rank is worker and server; momentum and scale as in the papers, in plain torch."""
    model = nn.Linear(64, 32, bias=False)
    optimizer = grace.OneBitAdam(model.parameters(), lr=LR, warmup=1)
    worker = server = torch.zeros(32, 64)
    momentum = torch.zeros(32, 64)
    for step in range(6):
        torch.manual_seed(step)
        model.weight.grad = torch.randn(32, 64)
        before = model.weight.detach().clone()
        optimizer.step()
        momentum = 0.9 * momentum + 0.1 * model.weight.grad
        if step:
            slots = optimizer.state[model.weight]
            scale = (slots["exp_avg_sq"] / (1 - 0.999)).sqrt() + 1e-8
            first = (momentum / scale).clamp(-LONGEST, LONGEST) + worker
            worker = first - first.abs().mean() * first.sign()
            second = first - worker + server
            server = second - second.abs().mean() * second.sign()
            moved = second - server
            assert torch.allclose(before - model.weight, LR / (1 - 0.9 ** (step + 1)) * moved, atol=1e-6)
            momentum = moved * scale


# What the papers claim, on handwritten digits -----------------------------------------------------------------

STEPS, WARMUP = 160, 40


def digits(rank: int, world: int, which: str) -> tuple[float, float, Tensor]:
    """The loss after training, and how many times fewer bytes leave a rank after the warm-up than with float32."""
    images = load_images("digits")
    x, y = images.train_x.flatten(1) / 255, images.train_y
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 10))
    optimizer: Any
    if which == "adam":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
        handle = grace.attach(optimizer, grace.none(), named_parameters=model.named_parameters())
    else:
        settings = {"local_steps": 40, "longest": 4} if which == "zeroone" else {}
        make: Any = grace.OneBitAdam if which == "onebit" else grace.ZeroOneAdam
        optimizer = make(model.named_parameters(), lr=1e-3, warmup=WARMUP, **settings)
        handle = optimizer.grace
    rates = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, STEPS)
    generator = torch.Generator().manual_seed(rank)
    warm = handle.stats()
    for step in range(STEPS):
        warm = handle.stats() if step == WARMUP else warm
        batch = torch.randint(len(x), (32,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        rates.step()
    if which == "zeroone":
        optimizer.synchronize()
    dense = 4 * sum(p.numel() for p in model.parameters()) * (STEPS - WARMUP)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(x), y).item()
    return loss, dense / (handle.stats().payload_bytes - warm.payload_bytes), flat(model)


def test_the_loss_of_adam_with_a_thirtieth_of_the_bytes(launch):
    answers = {which: launch(digits, 2, which) for which in ("adam", "onebit", "zeroone")}
    (plain, ratio, _), *_ = answers["adam"]
    assert 0.99 < ratio < 1.01 and 0.05 < plain < 0.4  # trained, from 2.3
    for which, least in (("onebit", 27.0), ("zeroone", 40.0)):
        loss, ratio, _ = answers[which][0]
        assert same_on_all_ranks([weights for _, _, weights in answers[which]])
        assert loss < plain + 0.01, (which, loss, plain)  # of 2.3 at the start
        assert ratio > least, (which, ratio)


# Settings, and the handle -------------------------------------------------------------------------------------


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3))]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"warmup": 0}, "warmup=0"),
        ({"warmup": 2.5}, "warmup=2.5"),
        ({"lr": -1.0}, "lr=-1.0"),
        ({"lr": "fast"}, "lr='fast'"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\]=1.0"),
        ({"betas": 0.9}, "betas=0.9"),
        ({"eps": 0.0}, "eps=0.0"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
        ({"method": "signsgd"}, "signsgd votes"),
        ({"method": "schedule(0=none; 9=signum)"}, "signum.* votes"),
        ({"method": "auto"}, "auto"),
        ({"method": "nonsense"}, "nonsense"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        grace.OneBitAdam(parameters(), **{"warmup": 2, **settings})


@pytest.mark.parametrize("setting", ["variance_updates", "local_steps", "longest"])
def test_bad_intervals_are_refused(setting):
    with pytest.raises(ConfigError, match=f"{setting}=0"):
        grace.ZeroOneAdam(parameters(), warmup=2, **{setting: 0})  # type: ignore[arg-type]


def test_bad_parameters_are_refused():
    (weight,) = parameters()
    for params, message in (
        ([], "no parameters"),
        (weight, "one tensor"),
        ([("a", weight), parameters()[0]], "some have none"),
        ([("a", weight), ("a", parameters()[0])], "named 'a'"),
    ):
        with pytest.raises(ConfigError, match=message):
            grace.OneBitAdam(params, warmup=2)  # type: ignore[arg-type]
    optimizer = grace.OneBitAdam([{"params": [("a", weight)], "lr": 0.5}], warmup=2)
    with pytest.raises(ConfigError, match="lr=-2"):
        optimizer.add_param_group({"params": parameters(), "lr": -2})
    assert len(optimizer.param_groups) == 1 and optimizer.param_groups[0]["lr"] == 0.5


def test_the_handle():
    model = network()
    optimizer = onebit(model, warmup=1)
    with pytest.raises(ConfigError, match="already"):
        grace.attach(optimizer, grace.topk())
    with pytest.raises(StateError, match="no field 'grace'"):
        optimizer.load_state_dict(torch.optim.AdamW(model.parameters()).state_dict())
    train(optimizer, model, 0, 0, 3)
    with pytest.raises(ConfigError, match="votes"):
        optimizer.grace.switch("signsgd")
    optimizer.grace.switch(grace.int8())
    train(optimizer, model, 0, 3, 5)
    optimizer.grace.detach()
    train(optimizer, model, 0, 5, 6)
    assert optimizer.grace.stats().steps == 6
    with optimizer.grace:
        pass
    before = flat(model)
    with pytest.raises(ConfigError, match="closed"):
        optimizer.step()
    assert bits_equal(before, flat(model))
    grace.attach(optimizer, grace.none()).close()


def under_ddp(rank: int, world: int, own: bool) -> int:
    """Warnings when an optimizer is made while DDP averages its own model, or another of the same shapes."""
    model = DistributedDataParallel(network())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        onebit(model.module if own else network())
    return sum("do not wrap" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("own", [True, False])
def test_a_model_that_ddp_averages_is_warned_of(launch, own):
    assert launch(under_ddp, 2, own) == [own, own]
