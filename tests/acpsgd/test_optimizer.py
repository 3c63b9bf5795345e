"""`acpsgd`: the optimizer as people use it, in one process."""

from __future__ import annotations

import copy
import math
import pickle
import warnings

import pytest
import torch
from torch import nn

import acpsgd
from acpsgd_training import METHODS, Net, batch, build, train
from grace_dl.digest import digest, sealed
from grace_dl.errors import ConfigError, StateError


@pytest.fixture(autouse=True)
def leave():
    yield
    acpsgd.shutdown()


@pytest.mark.parametrize("method", METHODS)
def test_one_process_needs_no_launcher(method):
    acpsgd.init()
    assert (acpsgd.rank(), acpsgd.size(), acpsgd.local_rank()) == (0, 1, 0)
    model, optimizer = build(method, seed=0)
    acpsgd.broadcast_parameters(model.state_dict(), root_rank=0)
    acpsgd.broadcast_optimizer_state(optimizer, root_rank=0)
    losses = train(model, optimizer, range(30), 0)
    assert sum(losses[-5:]) < sum(losses[:5])
    assert optimizer.grace.stats().steps == 30
    assert isinstance(optimizer, torch.optim.SGD)
    assert float(acpsgd.allreduce(torch.tensor(3.0))) == 3.0


def test_ssgd_alone_is_the_plain_optimizer():
    model, optimizer = build("ssgd", seed=0, options={"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01})
    torch.manual_seed(0)
    other = Net()
    train(model, optimizer, range(5), 0)
    plain = torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    train(other, plain, range(5), 0)
    for one, two in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(
    "kind, options", [(torch.optim.Adam, {"lr": 1e-3}), (torch.optim.RMSprop, {"lr": 1e-3})]
)
def test_any_optimizer(kind, options):
    model, optimizer = build(seed=0, kind=kind, options=options)
    losses = train(model, optimizer, range(30), 0)
    assert isinstance(optimizer, kind)
    assert sum(losses[-5:]) < sum(losses[:5])


def test_closures():
    model, optimizer = build("ssgd", seed=0, kind=torch.optim.LBFGS, options={"lr": 0.5, "max_iter": 5})
    x, y = batch(0)

    def closure():
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(model(x), y)
        value.backward()
        return value

    first = optimizer.step(closure).item()
    for _ in range(3):
        last = optimizer.step(closure).item()
    assert last < first


def test_schedulers_and_step_hooks():
    model = Net()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    before = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    optimizer = acpsgd.DistributedOptimizer(plain, model.named_parameters())
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    optimizer.load_state_dict(optimizer.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        train(model, optimizer, [0], 0)
        before.step()
        after.step()
    assert optimizer.param_groups[0]["lr"] == 0.025
    assert optimizer.grace.stats().steps == 1
    assert calls == [1]
    copy.deepcopy(optimizer.state_dict())


@pytest.mark.parametrize("how", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_is_the_plain_optimizer(how):
    model, optimizer = build("acpsgd", seed=0)
    train(model, optimizer, range(2), 0)
    twin, again = how((model, optimizer))
    assert type(again) is torch.optim.SGD
    again.step()
    assert not any(p._post_accumulate_grad_hooks for p in twin.parameters())
    train(model, optimizer, range(2, 4), 0)
    assert optimizer.grace.stats().steps == 4


def test_buckets_leave_during_backward():
    """When backward reaches the first layer, the factors of the last ones are on their way."""
    model, optimizer = build("acpsgd", seed=0, threshold=0)
    sent = []
    model.conv.weight.register_hook(lambda grad: sent.append(optimizer.grace.stats().collectives))
    x, y = batch(0)
    nn.functional.cross_entropy(model(x), y).backward()
    assert sent[0] >= 4
    assert optimizer.grace.stats().collectives == len(list(model.parameters()))


def test_buckets_are_sized_by_what_is_sent():
    layers = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(8)))
    megabytes = 512 * 512 * 4 / 2**20
    for threshold, expected in ((25, 1), (2 * megabytes, 4), (megabytes, 8), (0, 8)):
        for method in METHODS:
            optimizer = acpsgd.DistributedOptimizer(
                torch.optim.SGD(layers.parameters(), lr=0.0), threshold=threshold, method=method
            )
            layers(torch.ones(1, 512)).sum().backward()
            rounds = 2 if method == "powersgd" else 1
            assert optimizer.grace.stats().collectives == expected * rounds
            optimizer.grace.close()


def test_unused_layers_are_left_alone():
    model, optimizer = build(seed=0, options={"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9})
    kept = [p.detach().clone() for p in model.extra.parameters()]
    for step in range(3):
        optimizer.zero_grad()
        x, y = batch(step)
        nn.functional.cross_entropy(model(x, extra=False), y).backward()
        assert model.extra.weight.grad is None
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(kept, model.extra.parameters()))
    train(model, optimizer, range(3), 0)
    assert not torch.equal(kept[0], model.extra.weight)


def test_layers_frozen_and_thawed():
    model, optimizer = build("ssgd", seed=0)
    model.extra.requires_grad_(False)
    train(model, optimizer, range(2), 0)
    model.extra.requires_grad_(True)
    steps = optimizer.grace.stats().dense_bytes
    before = model.extra.weight.detach().clone()
    train(model, optimizer, range(1), 0)
    assert optimizer.grace.stats().dense_bytes - steps == sum(p.nbytes for p in model.parameters())
    assert not torch.equal(before, model.extra.weight)


def test_a_layer_thawed_after_clearing_takes_part():
    model = Net()
    model.extra.requires_grad_(False)
    optimizer = acpsgd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    optimizer.zero_grad()
    model.extra.requires_grad_(True)
    x, y = batch(0)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert optimizer.grace.stats().dense_bytes == sum(p.nbytes for p in model.parameters())


def test_added_parameters_take_part():
    model, optimizer = build("ssgd", seed=0)
    added = nn.Linear(10, 10)
    optimizer.add_param_group({"params": added.parameters(), "lr": 0.1})
    optimizer.zero_grad()
    added(model(batch(0)[0])).sum().backward()
    optimizer.step()
    assert optimizer.grace.stats().dense_bytes == sum(
        p.nbytes for m in (model, added) for p in m.parameters()
    )


def test_a_broken_backward_is_forgotten():
    model, optimizer = build(seed=0)
    x, y = batch(0)

    def fail(grad):
        raise RuntimeError("broken on purpose")

    hook = model.conv.weight.register_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        nn.functional.cross_entropy(model(x), y).backward()
    hook.remove()
    train(model, optimizer, range(2), 0)
    assert optimizer.grace.stats().steps == 2


def test_passes_that_do_not_come_are_made_up_for():
    model, optimizer = build("ssgd", seed=0, backward_passes_per_step=4)
    train(model, optimizer, range(2), 0, passes=3)
    assert optimizer.grace.stats().steps == 2


def test_a_state_that_cannot_be_loaded_changes_nothing():
    """Nor is a step given up that is under way."""
    model, optimizer = build(seed=0, options={"lr": 0.05, "momentum": 0.9}, backward_passes_per_step=2)
    train(model, optimizer, range(3), 0, passes=2)
    state = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, range(3, 5), 0, passes=2)
    before = digest(optimizer.state_dict())

    def fail(_):
        raise MemoryError("no more memory")

    hook = optimizer.register_load_state_dict_post_hook(fail)
    with pytest.raises(MemoryError):
        optimizer.load_state_dict(state)
    hook.remove()
    steps = dict.fromkeys(state["grace"]["steps"], "three")
    with pytest.raises(StateError, match="damaged"):
        optimizer.load_state_dict({**state, "grace": sealed({**state["grace"], "steps": steps})})
    assert digest(optimizer.state_dict()) == before

    optimizer.zero_grad()
    x, y = batch(0)
    nn.functional.cross_entropy(model(x), y).backward()
    with pytest.raises(StateError, match="method"):
        optimizer.load_state_dict({**state, "grace": sealed({**state["grace"], "method": "topk:0.1"})})
    assert optimizer.grace.reducer.unfinished


def test_bad_arguments():
    model = Net()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    for arguments, words in (
        ({"method": "powersgdd"}, "did you mean 'powersgd'"),
        ({"threshold": -1}, "threshold=-1"),
        ({"threshold": math.inf}, "threshold=inf"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step=0"),
        ({"rank": 0}, "rank=0"),
        ({"ranks": 2}, "ranks"),
        ({"named_parameters": list(model.named_parameters())[:2]}, "not in named_parameters"),
    ):
        with pytest.raises(ConfigError, match=words):
            acpsgd.DistributedOptimizer(plain, **arguments)
    optimizer = acpsgd.DistributedOptimizer(plain)
    with pytest.raises(ConfigError, match="already"):
        acpsgd.DistributedOptimizer(optimizer)
    with pytest.raises(ConfigError, match="root_rank=1"):
        acpsgd.broadcast_parameters(model.state_dict(), root_rank=1)
    with pytest.raises(ConfigError, match="named_parameters"):
        acpsgd.broadcast_parameters(["weight"])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="average=True"):
        acpsgd.allreduce(torch.zeros(1), True)  # type: ignore[arg-type]
    acpsgd.broadcast_parameters(list(model.parameters()), root_rank=0)


def test_init_comes_first():
    with pytest.raises(ConfigError, match="init"):
        acpsgd.rank()
