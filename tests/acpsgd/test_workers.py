"""`acpsgd`: the optimizer on real workers."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from torch import nn

import acpsgd
from acpsgd_training import METHODS, Net, batch, build, same, train, weights
from launch import free_port


def replicas(rank, world, method, threshold):
    acpsgd.init()
    assert (acpsgd.rank(), acpsgd.size()) == (rank, world)
    model, optimizer = build(method, threshold=threshold, options={"lr": 0.05, "momentum": 0.9})
    acpsgd.broadcast_parameters(model.named_parameters())
    losses = train(model, optimizer, range(40), rank)
    return weights(model), sum(losses[-5:]) < sum(losses[:5])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("world", [2, 3])
def test_replicas_stay_identical(launch, method, world):
    results = launch(replicas, world, method, 0.02)
    same([w for w, _ in results])
    assert all(fell for _, fell in results)


def average(rank, world, passes, plain_passes):
    """One step of S-SGD; the mean over ranks and passes must come out."""
    acpsgd.init()
    model, optimizer = build("ssgd", seed=0, options={"lr": 1.0}, backward_passes_per_step=passes)
    before = weights(model)
    train(model, optimizer, [0], rank, passes=passes * plain_passes)
    return [a - b for a, b in zip(before, weights(model))]


@pytest.mark.parametrize("passes, plain_passes", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_accumulation(launch, passes, plain_passes):
    """Gradients add up over passes, whether these are announced or not, and are averaged over workers."""
    results = launch(average, 2, passes, plain_passes)
    same(results)
    torch.manual_seed(0)
    model = Net()
    for rank in range(2):
        for part in range(passes * plain_passes):
            x, y = batch(part, rank)
            (nn.functional.cross_entropy(model(x), y) / 2).backward()
    for mine, parameter in zip(results[0], model.parameters()):
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-4, atol=1e-6)


def accumulate(rank, world, method, way):
    acpsgd.init()
    model, optimizer = build(method, seed=0, backward_passes_per_step=3 if way == "announced" else 1)
    for step in range(15):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for part in range(3):
            x, y = batch(3 * step + part, rank)
            # The extra layer takes part in the first pass alone.
            if way == "no_sync" and part < 2:
                with optimizer.no_sync():
                    nn.functional.cross_entropy(model(x, extra=part == 0), y).backward()
            else:
                nn.functional.cross_entropy(model(x, extra=part == 0), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    return weights(model), optimizer.grace.stats().collectives


@pytest.mark.parametrize("method", ["acpsgd", "powersgd"])
@pytest.mark.parametrize("way", ["announced", "no_sync", "plain"])
def test_accumulation_keeps_replicas(launch, method, way):
    results = launch(accumulate, 2, method, way)
    same([w for w, _ in results])
    assert all(bool(t.isfinite().all()) for t in results[0][0])


def branches(rank, world, method):
    """The extra layer is used by one rank, by all, or by none, in turn; rank 1 sometimes reaches nothing at all."""
    acpsgd.init()
    model, optimizer = build(method, seed=0, options={"lr": 0.05, "weight_decay": 0.1, "momentum": 0.9})
    for step in range(12):
        optimizer.zero_grad()
        if not (step % 4 == 3 and rank == 1):
            x, y = batch(step, rank)
            extra = (step % 3 == 0) or (step % 3 == 1 and rank == 0)
            nn.functional.cross_entropy(model(x, extra=extra), y).backward()
        optimizer.step()
    return weights(model)


@pytest.mark.parametrize("method", METHODS)
def test_layers_used_by_some(launch, method):
    same(launch(branches, 2, method))


def unnamed_groups(rank, world):
    acpsgd.init()
    torch.manual_seed(0)
    model = Net()
    plain = torch.optim.SGD(
        [
            {"params": model.conv.parameters(), "lr": 0.01},
            {"params": [*model.hidden.parameters(), *model.extra.parameters()], "lr": 0.1},
            {"params": model.out.parameters(), "lr": 0.05, "weight_decay": 0.1},
        ],
        lr=1.0,
    )
    optimizer = acpsgd.DistributedOptimizer(plain, rank=2)
    train(model, optimizer, range(10), rank)
    return weights(model)


def test_several_groups_without_names(launch):
    same(launch(unnamed_groups, 2))


def scaled(rank, world, method, tell):
    """Mixed precision with a loss scaler: an overflow on one rank, then another scale."""
    acpsgd.init()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    model, optimizer = build(method, seed=0, scaler=scaler if tell else None)
    history = []
    for step in range(12):
        optimizer.zero_grad()
        x, y = batch(step, rank)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = nn.functional.cross_entropy(model(x).float(), y)
        if step == 4 and rank == 1:
            value = value * math.inf
        before = weights(model)
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        history.append((scaler.get_scale(), torch.equal(before[0], weights(model)[0])))
    parts = optimizer.grace.state_dict()["parts"].values()
    slots = [slots for part in parts for memory in part.values() for slots in memory.values()]
    clean = all(bool(t.isfinite().all()) for of_name in slots for t in of_name.values())
    return weights(model), history, clean


@pytest.mark.parametrize("method", METHODS)
def test_loss_scaler(launch, method):
    results = launch(scaled, 2, method, True)
    same([w for w, _, _ in results])
    assert all(clean for _, _, clean in results)
    for _, history, _ in results:
        assert [kept for _, kept in history] == [step == 4 for step in range(12)]
        assert len({scale for scale, _ in history}) > 2
        assert history == results[0][1]
    assert all(bool(t.isfinite().all()) for t in results[0][0])


def checkpointed(rank, world, method, kind):
    acpsgd.init()
    options = {"lr": 0.05, "momentum": 0.9} if kind == "SGD" else {"lr": 1e-3}
    make = {"seed": 0, "kind": getattr(torch.optim, kind), "options": options}
    model, optimizer = build(method, **make)
    train(model, optimizer, range(5), rank)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, range(5, 10), rank)
    resumed, second = build(method, **make)
    resumed.load_state_dict(saved[0])
    second.load_state_dict(saved[1])
    train(resumed, second, range(5, 10), rank)
    return weights(model), weights(resumed)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_checkpoints_resume_exactly(launch, method, kind):
    results = launch(checkpointed, 2, method, kind)
    same([w for pair in results for w in pair])


def from_rank_zero(rank, world, method, way):
    """Only worker 0 has a checkpoint, as in most scripts: it is read by all, or by one and broadcast."""
    acpsgd.init()
    model, optimizer = build(method, seed=0, options={"lr": 0.05, "momentum": 0.9})
    train(model, optimizer, range(5), rank)
    box = [(model.state_dict(), optimizer.state_dict())]
    torch.distributed.broadcast_object_list(box, src=0)
    model, optimizer = build(method, seed=rank, options={"lr": 0.05 + rank, "momentum": 0.9})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if rank == 0 or way == "read":
            model.load_state_dict(box[0][0])
            optimizer.load_state_dict(box[0][1])
    if way == "broadcast":
        acpsgd.broadcast_parameters(model.state_dict(), root_rank=0)
        acpsgd.broadcast_optimizer_state(optimizer, root_rank=0)
    train(model, optimizer, range(5, 15), rank)
    return weights(model), [str(w.message) for w in caught if "residuals" in str(w.message)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", ["read", "broadcast"])
def test_one_checkpoint_for_all(launch, method, way):
    results = launch(from_rank_zero, 2, method, way)
    same([w for w, _ in results])
    if way == "read":
        assert not results[0][1]
        assert "residuals start from zero" in results[1][1][0]


def metrics(rank, world):
    acpsgd.init()
    total = acpsgd.allreduce(torch.tensor([1.0, rank]), average=False)
    count = acpsgd.allreduce(torch.tensor(3 + 2 * rank))
    strided = torch.arange(6.0).view(2, 3).t() * (rank + 1)
    acpsgd.broadcast_parameters({"strided": strided, "number": 3}, root_rank=1)
    return total.tolist(), int(count), strided


def test_metrics_and_broadcast(launch):
    for total, count, strided in launch(metrics, 3):
        assert total == [3.0, 3.0]
        assert count == 5
        assert torch.equal(strided, torch.arange(6.0).view(2, 3).t() * 2)


def many_steps(rank, world, method):
    acpsgd.init()
    model, optimizer = build(method, threshold=0)
    acpsgd.broadcast_parameters(model.state_dict())
    train(model, optimizer, range(200), rank)
    return weights(model)


@pytest.mark.parametrize("method", ["powersgd", "acpsgd"])
def test_two_hundred_steps_with_many_buckets(launch, method):
    same(launch(many_steps, 2, method))


def started_here(rank, world, port):
    """As under torchrun: `init` makes the group from the environment, `shutdown` ends it."""
    acpsgd.init(timeout=30)
    total = float(acpsgd.allreduce(torch.tensor(float(acpsgd.rank())), average=False))
    acpsgd.shutdown()
    return total, torch.distributed.is_initialized()


def test_init_from_the_environment(launch):
    port = free_port()
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    assert launch(started_here, 2, port, init=False, env=env) == [(1.0, False), (1.0, False)]
