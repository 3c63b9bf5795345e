"""The sparse all-reduce: skewed selections, what does not fit, momenta, many ranks, real ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import grace_dl as grace
from contract.cases import bits_equal, gradients
from ddp_models import MLP, attach, batches, build
from grace_dl import catalog
from grace_dl.algebra.base import Method
from grace_dl.algebra.named import Named
from grace_dl.algebra.named import build as build_method
from grace_dl.communicator.owners import Owners, positions, spread
from grace_dl.communicator.sparse_allreduce import SparseAllreduce
from grace_dl.errors import ConfigError
from grace_dl.handle import ManualHandle
from grace_dl.memory.dgc import DgcMemory
from grace_dl.methods.topk import TopKCompressor
from grace_dl.pipeline.bucket import packed
from grace_dl.transport.simulated import World
from values import not_none, total


def sparse(name: str, **settings: Any) -> Named:
    return build_method(name, communicator="sparse_allreduce", **settings)


# Owners -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 64])
def test_every_element_has_one_owner(ranks: int) -> None:
    names, numels = ["a", "b", "c"], [1000, 1, 129]
    owners = Owners(names, numels, ranks)
    everything = [torch.arange(numel) for numel in numels]
    owner, place = owners.locate(everything)
    for rank in range(ranks):
        where, exist = owners.whole(place[owner == rank], rank)
        assert exist.all() and torch.equal(where, (owner == rank).nonzero().view(-1))
        for name, numel, part in zip(names, numels, owner.split(numels)):
            own = positions(name, numel, rank, ranks)
            assert sorted(own[own < numel].tolist()) == (part == rank).nonzero().view(-1).tolist()
            assert (own >= numel).sum() == len(own) - (part == rank).sum()
    parts = [spread(positions("a", 1000, r, ranks).float() + 1, "a", 1000, r, ranks) for r in range(ranks)]
    assert torch.equal(total(parts), torch.arange(1000.0) + 1)


@pytest.mark.parametrize("stride", [1, 2, 16, 64, 768, 4096])
def test_regular_patterns_fall_to_all_owners_alike(stride: int) -> None:
    """Elements in a row, columns of a matrix: the busiest of 16 owners gets little more than its share."""
    owners = Owners(["w"], [stride * 4096], 16)
    counts = torch.bincount(owners.locate([torch.arange(4096) * stride])[0], minlength=16)
    assert counts.max() <= 256 + 4 * math.sqrt(256)


# What is sent, and what is left -----------------------------------------------------------------------------


def at_work(method: Method, size: int) -> tuple[World, list[ManualHandle]]:
    world = simulated(size)
    return world, [grace.manual(method, transport=t) for t in world]


def simulated(size: int) -> World:
    return grace.simulated(size, timeout=60)


def unsent(handles: Sequence[ManualHandle], name: str = "w") -> Tensor:
    return total(not_none(handle.session.residual(name)).double() for handle in handles) / len(handles)


def burdening(owner: int, size: int, numel: int = 12_000) -> Tensor:
    """A gradient whose largest elements all have the same owner: the worst case of a selection."""
    x = 0.01 * torch.rand(numel, generator=torch.Generator().manual_seed(7)) + 0.01
    where = positions("w", numel, owner, size)
    x[where[where < numel][:: numel // (size * 1000)]] += 1.0
    return x


@pytest.mark.parametrize("name", ["topk", "dgc", "threshold"])
def test_a_selection_for_one_owner_stays_within_the_bytes_and_loses_nothing(name: str) -> None:
    size, steps = 4, 60
    settings: dict[str, Any] = {"threshold": {"threshold": 0.5}}.get(name, {"ratio": 0.05})
    settings |= {"momentum": 0.0, "sample_ratio": 1.0} if name == "dgc" else {}
    settings |= {"dense_below": 0}
    world, handles = at_work(sparse(name, **settings), size)
    grads = [burdening(1, size).view(100, 120) * (1 + rank) for rank in range(size)]

    def work(t: Any) -> list[Tensor]:
        zero = torch.zeros_like(grads[0])
        return [handles[t.rank].step(g, "w") for g in [grads[t.rank], *[zero] * (steps - 1)]]

    results = world.run(work)
    assert all(bits_equal(a, b) for of_rank in results for a, b in zip(results[0], of_rank))
    mean = total(grad.double() for grad in grads).view(-1) / size
    received = total(result.double() for result in results[0]).view(-1)
    assert torch.allclose(received + unsent(handles), mean, atol=1e-6)
    assert (results[0][0] != 0).sum() <= 0.06 * mean.numel() + size
    # Not all fits at once, but all of it arrives.
    assert ((results[0][0].view(-1) > 0.5) & (mean > 0.5)).sum() < 0.75 * (mean > 0.5).sum()
    if name != "threshold":  # there, what owners have left waits until ranks select elements again
        assert torch.allclose(received[mean > 0.5], mean[mean > 0.5], atol=1e-5)
        per_step = {handle.stats().leaving_bytes / steps for handle in handles}
        assert max(per_step) < 6 * 4 * 600 * (size - 1) / size


def test_momentum_is_masked_only_where_an_element_was_sent() -> None:
    """Among three parameters, of which one does not fit."""
    size = 4
    method = sparse("dgc", ratio=0.05, sample_ratio=1.0, momentum=0.5, dense_below=0)
    world, handles = at_work(method, size)
    grads = {"a": torch.rand(50, 60), "w": burdening(1, size).view(100, 120), "z": torch.rand(50, 60)}
    world.run(lambda t: exchange(handles[t.rank], grads))
    for handle in handles:
        memory = handle.session.communicator_of("w").memory
        assert isinstance(memory, DgcMemory)
        for name, grad in grads.items():
            m, v = memory.state[name]["m"].view_as(grad), memory.state[name]["v"].view_as(grad)
            assert torch.equal(m == 0, v == 0)
            assert torch.equal(v[v != 0], grad[v != 0])
            assert 0 < (v == 0).sum() <= 0.05 * v.numel()
        assert (memory.state["w"]["v"] == 0).sum() < 0.75 * 600


@pytest.mark.parametrize("name", ["topk", "dgc"])
def test_a_bad_step_restores_what_was_withheld(name: str) -> None:
    size = 3
    world, handles = at_work(sparse(name, ratio=0.05, dense_below=0), size)
    noise = torch.randn(100, 120, generator=torch.Generator().manual_seed(1))
    grads = [burdening(1, size).view(100, 120), noise]

    def work(t: Any) -> tuple[Tensor, Tensor, Tensor]:
        handle = handles[t.rank]
        handle.step(grads[0], "w")
        before = not_none(handle.session.residual("w")).clone()
        bad = grads[1] + grads[0]
        if t.rank == 2:
            bad[0, 5] = math.inf
        result = handle.step(bad, "w")
        return before, not_none(handle.session.residual("w")), result

    for before, after, result in world.run(work):
        assert torch.allclose(before, after, atol=1e-5)
        assert not result.isfinite().any()


def test_small_parameters_are_not_starved() -> None:
    """Gradients a thousand times smaller than those in the same bucket get through as well."""
    size, steps = 4, 12
    world, handles = at_work(sparse("topk", ratio=0.1), size)
    generator = torch.Generator().manual_seed(3)
    grads = {"large": torch.randn(100, 120, generator=generator)}
    grads["small"] = 1e-3 * torch.randn(40, 50, generator=generator)

    def work(t: Any) -> Tensor:
        return total(exchange(handles[t.rank], grads)["small"] for _ in range(steps))

    assert world.run(work)[0].norm() > 0.5 * (steps * grads["small"]).norm()


def exchange(handle: ManualHandle, grads: dict[str, Tensor]) -> dict[str, Tensor]:
    """A step of one bucket."""
    bucket = packed("bucket", list(grads), list(grads.values()))
    driver = handle.session.driver()
    driver.launch(bucket)
    driver.finish()
    return {segment.name: segment.view for segment in bucket.segments}


# Many ranks, other numbers of ranks -------------------------------------------------------------------------


def test_sixty_four_ranks() -> None:
    size, steps = 64, 2
    world, handles = at_work(grace.topk(0.02, dense_below=0), size)
    assert isinstance(handles[0].session.communicator_of("w"), SparseAllreduce)
    grads = gradients(size, steps)
    results = world.run(lambda t: [handles[t.rank].step(g, "w") for g in grads[t.rank]])
    assert all(bits_equal(a, b) for of_rank in results for a, b in zip(results[0], of_rank))
    mean = total(g.double() for of_rank in grads for g in of_rank).view(-1) / size
    received = total(result.double() for result in results[0]).view(-1)
    assert torch.allclose(received + unsent(handles), mean, atol=1e-5)


@pytest.mark.parametrize("text", ["topk:0.1", "dgc:0.05,momentum=0.0", "threshold:1.0"])
def test_state_moves_when_the_default_communicator_changes(text: str) -> None:
    """3 → 6 → 8 → 2 ranks, with steps in between."""
    method, steps = grace.parse(text), 2
    handles = [grace.manual(method, transport=t) for t in simulated(3)]
    for size in (3, 6, 8, 2):
        world, states = simulated(size), [handle.state_dict() for handle in handles]
        expected = unsent(handles) if handles[0].session.state.steps else torch.zeros(64 * 72)
        handles = [grace.manual(method, transport=t) for t in world]
        for handle in handles:
            handle.load_state_dict(states)
        if handles[0].session.state.steps:
            assert torch.allclose(unsent(handles), expected, rtol=1e-5, atol=1e-6)
        grads = gradients(size, steps, seed=size)
        results = world.run(lambda t: [handles[t.rank].step(g, "w") for g in grads[t.rank]])  # noqa: B023
        way = handles[0].session.communicator_of("w").name
        assert way == ("sparse_allreduce" if size > 4 else "allgather")
        mean = total(g.double() for of_rank in grads for g in of_rank).view(-1) / size
        received = total(result.double() for result in results[0]).view(-1)
        assert torch.allclose(received + unsent(handles), mean + expected, rtol=1e-4, atol=1e-5), size


def test_what_is_left_of_averages_does_not_enter_a_momentum() -> None:
    """DGC on other ranks goes on with the same sum of unsent elements, not with a larger gradient."""
    method = sparse("dgc", ratio=0.05)
    world, before = at_work(method, 3)
    grads = gradients(3, 3)
    world.run(lambda t: [before[t.rank].step(g, "w") for g in grads[t.rank]])
    after = [grace.manual(method, transport=t) for t in simulated(2)]
    for handle in after:
        handle.load_state_dict([old.state_dict() for old in before])
        assert not handle.session.state.carried
    assert torch.allclose(unsent(after), unsent(before), atol=1e-5)


def test_switching_carries_what_is_left_of_averages() -> None:
    world, handles = at_work(sparse("topk", ratio=0.1), 3)
    grads = gradients(3, 3)
    results = world.run(lambda t: [handles[t.rank].step(g, "w") for g in grads[t.rank][:2]])
    for handle in handles:
        handle.switch("none")
    last = world.run(lambda t: handles[t.rank].step(grads[t.rank][2], "w"))
    mean = total(g.double() for of_rank in grads for g in of_rank) / 3
    assert torch.allclose(total([*results[0], last[0]]).double(), mean, atol=1e-5)


def test_a_warm_up_moves_its_memories() -> None:
    method = sparse("dgc", ratio=0.01, warmup_stages=2, warmup_steps=2, momentum=0.0)
    world, handles = at_work(method, 5)
    grads = gradients(5, 7)
    results = world.run(lambda t: [handles[t.rank].step(g, "w") for g in grads[t.rank]])
    sent = [int((result != 0).sum()) for result in results[0]]
    assert sent[0] > sent[3] > sent[6]
    mean = total(g.double() for of_rank in grads for g in of_rank).view(-1) / 5
    received = total(result.double() for result in results[0]).view(-1)
    assert torch.allclose(received + unsent(handles), mean, atol=1e-5)
    assert not handles[0].session.state.carried


def test_compressors_that_sum() -> None:
    compressor = TopKCompressor(0.1)
    compressor.average = False
    world, grads = simulated(3), gradients(3, 2)
    method = grace.custom(compressor, communicator="sparse_allreduce")
    handles = [grace.manual(method, transport=t) for t in world]
    results = world.run(lambda t: [handles[t.rank].step(g, "w") for g in grads[t.rank]])
    given = total(g.double() for of_rank in grads for g in of_rank).view(-1)
    received = total(result.double() for result in results[0]).view(-1)
    assert torch.allclose(received + 3 * unsent(handles), given, atol=1e-5)


def test_methods_that_select_nothing_are_rejected() -> None:
    with pytest.raises(ConfigError, match="int8 cannot go through sparse_allreduce"):
        grace.int8(communicator="sparse_allreduce")
    assert "sparse_allreduce" not in catalog.communicators_of(catalog.info("randomk"))


# Real ranks -------------------------------------------------------------------------------------------------


class Branches(nn.Module):
    """One of two layers is used; biases are small enough to be sent uncompressed."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = MLP()
        self.left, self.right = nn.Linear(4, 300), nn.Linear(4, 300)

    def forward(self, x: Tensor, left: bool) -> Tensor:
        return (self.left if left else self.right)(self.trunk(x))


def through_ddp(rank: int, world: int, text: str) -> None:
    """DDP rebuilds its buckets after the first step; a branch is used by rank 0 alone, then by none."""
    model, handle = attach(build(Branches), text, find_unused_parameters=True)
    plain = build(Branches)
    sums = {name: torch.zeros_like(p) for name, p in plain.named_parameters()}
    got = {name: torch.zeros_like(p) for name, p in plain.named_parameters()}
    for step, x in enumerate(batches(rank, 5)):
        left = step < 3 and rank == 0
        for replica in (model, plain):
            replica.zero_grad(set_to_none=True)
            replica(x, left).square().mean().backward()
        for name, p in plain.named_parameters():
            sums[name] += torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.module.named_parameters():
            if p.grad is not None:
                got[name] += p.grad
                copies = [torch.empty_like(p.grad) for _ in range(world)]
                dist.all_gather(copies, p.grad)
                assert all(bits_equal(copy, p.grad) for copy in copies), name
    for name, summed in sums.items():
        dist.all_reduce(summed)
        owed = handle.session.residual(name)
        left_over = torch.zeros_like(summed) if owed is None else owed.view_as(summed).clone()
        dist.all_reduce(left_over)
        assert torch.allclose(got[name] + left_over / world, summed / world, atol=1e-5), name
    assert handle.stats().ratio > 1


@pytest.mark.parametrize("world", [2, 3, 4])
def test_through_ddp(launch: Any, world: int) -> None:
    for method in (sparse("topk", ratio=0.05), sparse("threshold", threshold=1e-3)):
        launch(through_ddp, world, str(method))
