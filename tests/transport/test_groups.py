"""Groups of ranks on `torch.distributed`: where nodes come from, what is shared, and ranks that fail."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import grace_dl as grace
from grace_dl.errors import ConfigError, LayoutError
from grace_dl.handle import Handle
from grace_dl.transport.torch_dist import TorchTransport


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))


def train(rank: int, method: Any, steps: int = 4) -> tuple[nn.Module, Handle]:
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    handle = grace.attach(model, method)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 40, generator=generator)).square().mean().backward()
        optimizer.step()
    return model, handle


def parameters(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def nodes_of(handle: Handle) -> Any:
    return handle.session.communicator_of("0.weight").groups  # type: ignore[attr-defined]


# Where nodes come from --------------------------------------------------------------------------------------


def training(rank: int, world: int) -> Any:
    """The same result, whatever says where the ranks are."""
    node = world // 2
    os.environ["LOCAL_WORLD_SIZE"] = str(node)
    mesh = init_device_mesh("cpu", (2, node), mesh_dim_names=("node", "local"))
    groups = tuple(tuple(range(first, first + node)) for first in range(0, world, node))
    outer = grace.topk(0.1)
    found = []
    for settings in ({}, {"ranks_per_node": node}, {"nodes": groups}, {"nodes": mesh["local"]}):
        model, handle = train(rank, grace.hierarchical(outer=outer, **settings))
        assert nodes_of(handle) == groups
        stats = handle.stats()
        found.append(parameters(model))
        handle.close()
    with pytest.raises(ConfigError, match="2 dimensions; pass the axis within nodes"):
        grace.hierarchical(nodes=mesh)
    os.environ["LOCAL_WORLD_SIZE"] = str(world + 1)
    assert TorchTransport().nodes() == (tuple(range(world)),)
    del os.environ["LOCAL_WORLD_SIZE"]
    with pytest.raises(ConfigError, match="LOCAL_WORLD_SIZE is not set"):
        train(rank, grace.hierarchical())
    plain = parameters(train(rank, grace.none())[0])
    assert (found[0] - plain).abs().max() < 0.1
    return found, stats.between_bytes


@pytest.mark.parametrize("world", [4, 6])
def test_nodes_from_the_launcher_a_mesh_or_given(launch: Any, world: int) -> None:
    answers = launch(training, world)
    for found, _ in answers:
        assert all(torch.equal(result, answers[0][0][0]) for result in found)
    # Of a node, what is sent to the other is what one rank sends among two.
    node = sum(between for _, between in answers[: world // 2])
    (alone, _) = launch(flat_bytes, 2)
    assert node == pytest.approx(alone, rel=0.05)  # the ranks of a node have headers of their own


def flat_bytes(rank: int, world: int) -> int:
    _, handle = train(rank, grace.topk(0.1))
    return handle.stats().leaving_bytes


# A part of the job ------------------------------------------------------------------------------------------


def part_of_the_job(rank: int, world: int) -> Any:
    """The nodes of a process group are those of the job."""
    os.environ["LOCAL_WORLD_SIZE"] = "3"
    group = dist.new_group([0, 1, 3, 4])
    result = None
    if rank in (0, 1, 3, 4):
        transport = TorchTransport(group)
        assert transport.nodes() == ((0, 1), (2, 3))
        handle = grace.manual(grace.hierarchical(outer=grace.none()), transport=transport)
        result = handle.step(torch.full((40, 40), float(rank)), "w")
        handle.close()
    dist.barrier()
    del os.environ["LOCAL_WORLD_SIZE"]
    return result


def test_in_a_part_of_the_job(launch: Any) -> None:
    answers = launch(part_of_the_job, 6)
    assert all(torch.equal(answers[r], torch.full((40, 40), 2.0)) for r in (0, 1, 3, 4))


# Channels ---------------------------------------------------------------------------------------------------


def reattaching(rank: int, world: int) -> tuple[int, int]:
    counts = []
    text = "hierarchical(outer=schedule(0=none; 1=int4; 2=topk:0.1; 3=powersgd:2); ranks_per_node=2)"
    for _ in range(3):
        _, handle = train(rank, text)
        handle.close()
        del handle
        gc.collect()
        counts.append(len(c10d._world.pg_map))
    return counts[0], counts[-1]


def test_groups_are_shared_by_methods_and_used_again(launch: Any) -> None:
    for first, last in launch(reattaching, 4):
        assert last == first  # nothing more for handles that come later
        assert first <= 1 + 2 + 4  # the job's group, one for each level, and channels for more rounds


# Ranks that differ or fail ----------------------------------------------------------------------------------


def differing(rank: int, world: int) -> None:
    with pytest.raises(LayoutError, match="disagree"):
        grace.manual(grace.hierarchical(ranks_per_node=2 if rank else 4))
    handle = grace.manual(grace.hierarchical(ranks_per_node=2, outer=grace.none()))
    assert torch.equal(handle.step(torch.full((3,), float(rank)), "w"), torch.full((3,), 1.5))


def test_ranks_that_differ_are_told_before_they_connect(launch: Any) -> None:
    launch(differing, 4)


def dying(rank: int, world: int) -> None:
    handle = grace.manual(grace.hierarchical(ranks_per_node=2))
    handle.step(torch.ones(5000), "w")
    if rank == 3:
        os._exit(0)
    for _ in range(3):
        handle.step(torch.ones(5000), "w")


def test_a_rank_that_dies_gives_all_others_an_error(launch: Any) -> None:
    """Also the ranks that share no group with it."""
    outcomes = launch.outcomes(dying, 4, timeout=40, group_timeout=10)
    assert all(str(outcome.error).startswith("PeerError") for outcome in outcomes[:3]), outcomes


def raising(rank: int, world: int) -> torch.Tensor:
    """A backward pass that raises on all ranks is rolled back, and training goes on."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    method = grace.hierarchical(outer=grace.topk(0.1), ranks_per_node=2)
    handle: Any = grace.attach(optimizer, method, named_parameters=model.named_parameters())
    handle.reducer.options.bucket_bytes = 4096
    handle.reducer.refill()
    first = next(model.parameters())
    for step in range(4):
        optimizer.zero_grad()

        def fail(_: Any, step: int = step) -> None:
            if step == 1:
                raise RuntimeError("an accident")

        hook = first.register_hook(fail)
        if step == 1:
            with pytest.raises(RuntimeError, match="accident"):
                model(torch.randn(8, 40)).square().mean().backward()
        else:
            model(torch.randn(8, 40)).square().mean().backward()
            optimizer.step()
        hook.remove()
    assert handle.stats().steps == 3
    return parameters(model)


def test_a_backward_pass_that_raises(launch: Any) -> None:
    answers = launch(raising, 4)
    assert all(torch.equal(answer, answers[0]) for answer in answers)
