"""Local steps against a plain simulation of the published rules, on real ranks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import grace_dl as grace
from contract.cases import bits_equal
from grace_dl.errors import ConfigError
from handles.local_training import alike, batch, flat, inner, local, mean_of, nesterov, network

# What is computed ---------------------------------------------------------------------------------------------


def unit_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0)


def averaging(rank: int, world: int, by: Any) -> None:
    """Every step, uncompressed: the plain average of parameters."""
    torch.manual_seed(rank)
    model = nn.Linear(12, 1)
    outer = grace.LocalSteps(
        model, optimizer := inner(model), grace.none(), every=1, outer=None if by is None else by(model)
    )
    other = copy.deepcopy(model)
    theirs = inner(other)
    for step in range(5):
        local(model, optimizer, rank, step)
        outer.step()
        local(other, theirs, rank, step)
        average = flat(
            other
        )  # in one piece: the order in which three ranks add depends on places in a buffer
        dist.all_reduce(average)
        nn.utils.vector_to_parameters(average / world, other.parameters())
        assert bits_equal(flat(model), flat(other)), step


@pytest.mark.parametrize("by", [None, unit_sgd], ids=["without", "sgd"])
@pytest.mark.parametrize("world", [2, 3])
def test_exchanging_every_step_uncompressed_is_plain_averaging(launch, world, by):
    launch(averaging, world, by)


def rescheduled(rank: int, world: int, before: float, after: float) -> tuple[Tensor, int]:
    """The rate of the outer SGD changes while an exchange travels; the rate at the end counts."""
    model = network()[0:1]
    sgd = torch.optim.SGD(model.parameters(), lr=before)
    outer = grace.LocalSteps(model, optimizer := inner(model), grace.none(), every=2, delay=1, outer=sgd)
    calls = []
    sgd.register_step_post_hook(lambda *_: calls.append(1))
    for step in range(3):
        local(model, optimizer, rank, step)
        if step == 2:
            sgd.param_groups[0]["lr"] = after
        outer.step()
    return flat(model).clone(), len(calls)


@pytest.mark.parametrize("after", [0.5, 1.0])
def test_the_outer_rate_may_change_while_an_exchange_travels(launch, after):
    """An exchange of parameters (rate 1 at its start) and one of differences have the same result."""
    (found, calls), _ = launch(rescheduled, 2, 1.0, after)
    (expected, _), _ = launch(rescheduled, 2, 0.25, after)
    torch.testing.assert_close(found, expected)
    assert calls == 1  # hooks of the outer optimizer, such as those of a scheduler, see every exchange


def streaming(
    rank: int, world: int, fragments: int, delay: int, merge: float, every: int, steps: int
) -> None:
    """The rule itself, all ranks simulated in one process: Δ = anchor - θ, outer Nesterov, θ = (1-α) new + α θ."""
    model = network()[0:1]
    outer = grace.LocalSteps(
        model,
        optimizer := inner(model),
        grace.none(),
        every=every,
        outer=nesterov(model),
        fragments=fragments,
        delay=delay,
        merge=merge,
    )
    replicas = [network()[0:1] for _ in range(world)]
    theirs = [inner(replica) for replica in replicas]
    names = [name for name, _ in model.named_parameters()]
    parts = [[n] for n in names] if fragments == 2 else [names]
    anchor = {n: p.detach().clone() for n, p in replicas[0].named_parameters()}
    velocity: dict[str, Tensor] = {}
    flying: list[tuple[int, dict[str, Tensor]]] = []

    def apply(moved: dict[str, Tensor]) -> None:
        for name, difference in moved.items():
            before = velocity.get(name)
            velocity[name] = difference.clone() if before is None else 0.9 * before + difference
            anchor[name] = anchor[name] - 0.7 * (difference + 0.9 * velocity[name])
            for replica in replicas:
                parameter = dict(replica.named_parameters())[name]
                parameter.data = (1 - merge) * anchor[name] + merge * parameter.data

    for step in range(1, steps + 1):
        local(model, optimizer, rank, step)
        outer.step()
        for r, (replica, its) in enumerate(zip(replicas, theirs)):
            local(replica, its, r, step)
        for due, moved in [f for f in flying if f[0] <= step]:
            apply(moved)
            flying.remove((due, moved))
        for place, part in enumerate(parts):
            if (step + place * every // fragments) % every == 0:
                moved = {
                    n: mean_of([anchor[n] - dict(r.named_parameters())[n].detach() for r in replicas])
                    for n in part
                }
                apply(moved) if delay == 0 else flying.append((step + delay, moved))
        assert torch.allclose(flat(model), flat(replicas[rank]), atol=1e-5), step


@pytest.mark.parametrize(
    "fragments, delay, merge, every", [(1, 0, 0.0, 3), (1, 2, 0.5, 4), (2, 0, 0.0, 4), (2, 2, 0.25, 4)]
)
def test_diloco_and_streaming_diloco(launch, fragments, delay, merge, every):
    launch(streaming, 2, fragments, delay, merge, every, 17)


def compressed(rank: int, world: int, text: str) -> tuple[Tensor, Tensor, float, float]:
    model = network()
    outer = grace.LocalSteps(model, optimizer := inner(model), text, every=4)
    for step in range(24):
        local(model, optimizer, rank, step)
        outer.step()
    stats = outer.stats()
    assert stats.steps == 6
    buffers = torch.cat([b.reshape(-1) for b in model.buffers() if b.is_floating_point()])
    with torch.no_grad():
        model.eval()
        loss = nn.functional.mse_loss(*((model(batch(9, 99)[0])), batch(9, 99)[1])).item()
    return flat(model), buffers, loss, stats.payload_bytes


@pytest.mark.parametrize(
    "text", ["int4", "topk:0.1,dense_below=0", "powersgd:2", "onebit", "schedule(0=none; 2=int8)"]
)
def test_replicas_are_identical_after_an_exchange(launch, text):
    answers = launch(compressed, 2, text)
    assert alike([answer[0] for answer in answers]) and alike([answer[1] for answer in answers])
    assert answers[0][0].isfinite().all()


def conserving(rank: int, world: int, text: str) -> tuple[Tensor, Tensor, Tensor]:
    """What was applied, what is left over, and what ranks wanted to send."""
    model = network()[0:1]
    outer = grace.LocalSteps(model, optimizer := inner(model), text, every=2)
    start, wanted = flat(model).clone(), torch.zeros_like(flat(model))
    for round_ in range(6):
        before = flat(model).clone()
        for step in (2 * round_, 2 * round_ + 1):
            local(model, optimizer, rank, step)
            wanted += (before - flat(model)) * (step % 2)
            outer.step()
    left = [outer.session.residual(name) for name, _ in model.named_parameters()]
    return start - flat(model), torch.cat([r.view(-1) for r in left if r is not None]), wanted


@pytest.mark.parametrize("text", ["topk:0.1,dense_below=0", "onebit:dense_below=0"])
def test_nothing_is_lost(launch, text):
    answers = launch(conserving, 2, text)
    applied, left = answers[0][0], mean_of([answer[1] for answer in answers])
    torch.testing.assert_close(
        applied + left, mean_of([answer[2] for answer in answers]), atol=1e-5, rtol=1e-4
    )


def test_the_anchor_is_kept_where_asked():
    model = network()
    outer = grace.LocalSteps(
        model, inner(model), "int8", every=1, anchor_dtype=torch.bfloat16, anchor_device="cpu"
    )
    for name, kept in outer.common_state["anchor"].items():
        assert (kept.dtype, kept.device.type) == (torch.bfloat16, "cpu")
        assert kept.data_ptr() != dict(model.named_parameters())[name].data_ptr()
    # Nothing was trained: the anchor stays the initial parameters, rounded once.
    outer.step()
    with outer.at_anchor():
        assert torch.equal(flat(model), flat(network()).bfloat16().float())


# Rounds and ranks ---------------------------------------------------------------------------------------------


def diverging(rank: int, world: int) -> Tensor:
    model = network()[0:1]
    outer = grace.LocalSteps(model, optimizer := inner(model), "topk:0.1,dense_below=0", every=2)
    for step in range(2):
        local(model, optimizer, rank, step)
        outer.step()
    anchor, state = flat(model).clone(), outer.state_dict()["parts"]
    local(model, optimizer, rank, 2)
    outer.step()
    if rank == 1:
        with torch.no_grad():
            next(model.parameters())[0, 0] = float("nan")
    outer.step()
    assert bits_equal(flat(model), anchor) and outer.stats().skipped == 1
    for text, memories in outer.state_dict()["parts"].items():
        for label, slots in memories.items():
            for name, tensors in slots.items():
                torch.testing.assert_close(tensors["e"], state[text][label][name]["e"])
    return flat(model)


def test_a_round_in_which_a_rank_diverged_is_dropped_on_all(launch):
    assert alike(launch(diverging, 2))


def diverging_statistics(rank: int, world: int) -> list[Tensor]:
    """In the second round, infinite inputs reach the statistics of rank 1."""
    torch.manual_seed(0)
    model = network()
    outer = grace.LocalSteps(model, inner(model), grace.int8(), every=2)
    statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    found = []
    for round_ in range(3):
        for step in range(2):
            with torch.no_grad():
                model(batch(rank, 2 * round_ + step)[0])
            if round_ == 1 and rank == 1:
                statistics[0][3] = float("inf")
            outer.step()
        found.append(torch.cat([buffer.clone() for buffer in statistics]))
    return found


def test_statistics_that_are_not_finite_are_those_of_the_last_exchange_on_all(launch: Any) -> None:
    """The others are averaged all the same."""
    one, other = launch(diverging_statistics, 2)
    assert all(bits_equal(a, b) and a.isfinite().all() for a, b in zip(one, other))
    (first, _), (second, variance), (third, _) = (found.split(16) for found in one)
    assert bits_equal(first, second) and not bits_equal(second, third)
    assert not bits_equal(variance, one[0][16:])


def synchronized(rank: int, world: int, merge: float) -> Tensor:
    model = network()
    outer = grace.LocalSteps(model, optimizer := inner(model), "int8", every=100, fragments=3, merge=merge)
    for step in range(7):
        local(model, optimizer, rank, step)
        outer.step()
    assert outer.local_steps == 7 and outer.stats().steps == 0
    before = flat(model).clone()
    with outer.at_anchor():  # which is still the model that ranks started with
        assert bits_equal(flat(model), flat(network()))
    assert bits_equal(flat(model), before)
    outer.synchronize()
    with outer.at_anchor():
        return flat(model).clone()


@pytest.mark.parametrize("merge", [0.0, 0.5])
def test_synchronize_exchanges_at_once(launch, merge):
    assert alike(launch(synchronized, 2, merge))


def within_clusters(rank: int, world: int) -> Tensor:
    """Two clusters of two ranks: DDP inside, local steps between."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cluster", "rank"))
    model = network()[0:1]
    ddp = DistributedDataParallel(model, process_group=mesh["rank"].get_group())
    outer = grace.LocalSteps(model, optimizer := inner(model), "int8", every=3, group=mesh["cluster"])
    for step in range(6):
        local(ddp, optimizer, rank, step)
        outer.step()
    result = flat(model).clone()
    outer.close()
    return result


def test_ddp_within_a_cluster_and_local_steps_between(launch):
    assert alike(launch(within_clusters, 4))


def sharded_clusters(rank: int, world: int, outer: Any) -> tuple[int, Tensor]:
    """Two clusters of two ranks: FSDP2 inside, local steps between; returns the shard and its elements."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cluster", "rank"))
    model = network()[3:4]
    fully_shard(model, mesh=mesh["rank"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made_outer = None if outer is None else outer(model)
    handle = grace.LocalSteps(model, optimizer, "int8", every=2, outer=made_outer, group=mesh["cluster"])
    generator = torch.Generator().manual_seed(rank)
    for _ in range(4):
        model(torch.randn(4, 16, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        handle.step()
    assert handle.stats().steps == 2
    shards = torch.cat([p.to_local().detach().reshape(-1) for p in model.parameters()])  # type: ignore[attr-defined]
    handle.close()
    return mesh["rank"].get_local_rank(), shards


@pytest.mark.parametrize("outer", [None, nesterov], ids=["plain", "nesterov"])
def test_fsdp2_within_a_cluster_and_local_steps_between(launch, outer):
    answers = launch(sharded_clusters, 4, outer)
    for place in (0, 1):
        assert alike([shards for mine, shards in answers if mine == place])


# Wrong use ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, word",
    [
        ({"every": 0}, "every"),
        ({"every": 2.5}, "every"),
        ({"every": 10, "delay": 11}, "delay=11"),
        ({"every": 10, "fragments": 2, "delay": 6}, "delay=6"),
        ({"merge": 1.0}, "merge"),
        ({"fragments": 9}, "fragments=9"),
        ({"outer": "sgd"}, "outer='sgd'"),
        ({"outer": lambda p: torch.optim.SGD([p[0]], lr=1.0)}, "model.parameters()"),
    ],
)
def test_wrong_settings_are_rejected(settings, word):
    model = network()
    with pytest.raises(ConfigError) as error:
        grace.LocalSteps(model, inner(model), "int8", **settings)
    assert word in str(error.value)


def test_a_rule_by_its_text():
    model = network()
    outer = grace.LocalSteps.from_rule(model, inner(model), "local(int4; every=8; delay=2; outer_lr=0.7)")
    assert (str(outer.method), outer.every, outer.delay) == ("int4", 8, 2)
    assert outer.common_state["outer"]["param_groups"][0]["lr"] == 0.7
    with pytest.raises(ConfigError, match="no rule for local steps"):
        grace.LocalSteps.from_rule(model, inner(model), "int4")
    with pytest.raises(ConfigError, match="not a method"):
        grace.attach(inner(model), "diloco", named_parameters=model.named_parameters())


def test_an_optimizer_of_another_model_or_attached_is_rejected():
    model, other = network(), network()
    with pytest.raises(ConfigError, match="not trainable parameters of the model"):
        grace.LocalSteps(model, inner(other), "int8")
    optimizer = inner(model)
    handle = grace.attach(optimizer, "int8", named_parameters=model.named_parameters())
    with pytest.raises(ConfigError, match="exchanged at every step already"):
        grace.LocalSteps(model, optimizer, "int8")
    handle.close()
    grace.LocalSteps(model, optimizer, "int8").close()
