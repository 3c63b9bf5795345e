"""Saved state of local steps between clusters, in each of which FSDP2 shards the model."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grace_dl as grace
from contract.cases import bits_equal
from grace_dl.errors import ConfigError
from handles.local_training import alike, inner, local, nesterov

STREAMING = {"every": 6, "fragments": 4, "delay": 1, "merge": 0.5}


def whole(model: nn.Module) -> Tensor:
    return torch.cat([p.full_tensor().detach().reshape(-1) for p in model.parameters()])  # type: ignore[attr-defined]


def resumed(rank: int, world: int, method: str, at: int) -> Tensor:
    """Save and continue; load into new objects, and continue again."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cluster", "rank"))

    def made() -> tuple[nn.Module, torch.optim.Optimizer, grace.LocalSteps]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(12, 3), nn.Tanh(), nn.Linear(3, 1)
        )  # two ranks cannot divide 3 rows, or 1
        fully_shard(model, mesh=mesh["rank"])
        optimizer = inner(model)
        outer = nesterov(model)
        return (
            model,
            optimizer,
            grace.LocalSteps(model, optimizer, method, outer=outer, group=mesh["cluster"], **STREAMING),  # type: ignore[arg-type]
        )

    def train(model: nn.Module, optimizer: Any, outer: grace.LocalSteps, steps: range) -> Tensor:
        for step in steps:
            local(model, optimizer, rank, step)
            outer.step()
        return whole(model)

    model, optimizer, outer = made()
    train(model, optimizer, outer, range(at))
    weights, moments = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    file = io.BytesIO()
    torch.save(outer.state_dict(), file)
    expected = train(model, optimizer, outer, range(at, 20))

    again, other, second = made()
    again.load_state_dict(weights)
    other.load_state_dict(moments)
    file.seek(0)
    state = torch.load(file, weights_only=True)  # plain tensors, which belong to no process group
    second.load_state_dict(state)
    assert bits_equal(train(again, other, second, range(at, 20)), expected)
    second.synchronize()
    return whole(again)


@pytest.mark.parametrize("at", [9, 11])
@pytest.mark.parametrize("method", ["chunktopk:beta=0.95", "none"])
def test_shards_of_unequal_size_resume_exactly(launch, method, at):
    assert alike(launch(resumed, 4, method, at))


def several_axes(rank: int, world: int) -> str:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("cluster", "rank"))
    model = nn.Linear(12, 1)
    with pytest.raises(ConfigError) as error:
        grace.LocalSteps(model, inner(model), "int8", group=mesh)
    return str(error.value)


def test_a_mesh_of_several_axes_is_rejected(launch):
    for said in launch(several_axes, 2):
        assert "2 dimensions" in said and "mesh['cluster']" in said
