"""FSDP2 over a mesh of two dimensions: two replicas of a model sharded over two ranks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

import grace_dl as grace
from contract.cases import bits_equal
from fsdp.sharded import Net, batch, close, grads, owed, plainly, sharded, step
from grace_dl.errors import StateError, UnsupportedError
from grace_dl.integrations.fsdp import FSDPHandle

FEEDBACK = "int4:memory=residual,dense_below=0"


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def attached(model: Any, method: str, replicas: str | None = None) -> FSDPHandle:
    handle = grace.attach(model, method, replicas=replicas)
    assert isinstance(handle, FSDPHandle)
    return handle


def everywhere(model: Any) -> dict[str, torch.Tensor]:
    """Whole gradients, checked to be the same in both replicas."""
    found = grads(model)
    for grad in found.values():
        both = [torch.empty_like(grad) for _ in range(4)]
        dist.all_gather(both, grad)
        assert all(bits_equal(other, grad) for other in both)
    return found


def uncompressed(rank: int, world: int) -> None:
    axes = mesh()
    plain, model = plainly(sharded(mesh=axes)), sharded(mesh=axes)
    handle = attached(model, "none")
    for number in range(2):
        expected = step(plain, rank, number)
        step(model, rank, number)
        assert close(expected, everywhere(model))
    model.zero_grad()
    plain.zero_grad()
    for one in (plain, model):  # accumulated, and divided by a factor
        one.set_requires_gradient_sync(False)
        one(batch(rank, 5)).square().mean().backward()
        one.set_requires_gradient_sync(True)
        for module in (one, one.first, one.second):
            module.set_gradient_divide_factor(3.0)
        one(batch(rank, 6)).square().mean().backward()
    assert close(grads(plain), everywhere(model))
    handle.close()
    plainly(model)
    for module in (plain, plain.first, plain.second):
        module.set_gradient_divide_factor(3.0)
    assert close(step(plain, rank, 3), step(model, rank, 3))


def test_without_compression_it_is_plain_fsdp(launch: Any) -> None:
    launch(uncompressed, 4)


def compressed(rank: int, world: int, method: str, replicas: str | None) -> None:
    """What both dimensions owe and all results are all gradients."""
    axes = mesh()
    plain, model = plainly(sharded(mesh=axes)), sharded(mesh=axes)
    handle = attached(model, method, replicas)
    between = handle.replicas
    assert between is not None and between.method == grace.parse(replicas or method)
    got = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    given = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    for number in range(4):
        for name, grad in step(plain, rank, number).items():
            given[name] += grad
        step(model, rank, number)
        for name, grad in everywhere(model).items():
            got[name] += grad
    for name, residual in owed(handle, model).items():
        dist.all_reduce(residual)
        shard = dict(model.named_parameters())[name].to_local()
        missing = between.session.residual(name)
        late = torch.zeros(shard.shape) if missing is None else missing.view(shard.shape).clone()
        dist.all_reduce(late, group=axes["replicate"].get_group())
        padded = -(-got[name].shape[0] // 2)
        first = (rank % 2) * padded
        mine = slice(first, first + shard.shape[0])
        off = (got[name] + residual / 4 - given[name])[mine] + late / 2
        assert off.abs().max() < 1e-5, name
    stats = handle.stats()
    assert stats.steps == 4
    assert stats.payload_bytes == handle.session.stats.payload_bytes + between.stats().payload_bytes


@pytest.mark.parametrize(
    "method, replicas", [("none", "topk:0.1,dense_below=0"), (FEEDBACK, None), (FEEDBACK, "powersgd:2")]
)
def test_replicas_take_any_method(launch: Any, method: str, replicas: str | None) -> None:
    launch(compressed, 4, method, replicas)


def not_finite(rank: int, world: int) -> None:
    model = sharded(mesh=mesh())
    handle = attached(model, FEEDBACK, "topk:0.1,dense_below=0")
    assert handle.replicas is not None
    step(model, rank, 0)
    before = {name: value.clone() for name, value in owed(handle, model).items()}
    steps = handle.state_dict()["steps"]
    hook = model.second.register_full_backward_hook(
        lambda _, inputs, outputs: (torch.full_like(inputs[0], float("nan")),) if rank == 3 else None
    )
    model.zero_grad()
    model(batch(rank, 1)).square().mean().backward()
    hook.remove()
    # One rank of one replica: both replicas restore their residuals, and all ranks see NaN.
    assert grads(model)["first.weight"].isnan().all()
    assert close(before, owed(handle, model))
    assert handle.state_dict()["steps"] == steps and handle.stats().skipped == 1
    step(model, rank, 2)
    everywhere(model)


def test_a_step_that_is_not_finite_in_one_replica_is_skipped_in_all(launch: Any) -> None:
    launch(not_finite, 4)


def resuming(rank: int, world: int) -> None:
    axes = mesh()
    whole = sharded(mesh=axes)
    handle = attached(whole, FEEDBACK, "topk:0.1,dense_below=0")
    for number in range(2):
        step(whole, rank, number)
    saved = handle.state_dict()
    model = sharded(mesh=axes)
    again = attached(model, FEEDBACK, "topk:0.1,dense_below=0")
    with pytest.raises(StateError, match="no part for replicas"):
        again.load_state_dict(handle.session.state_dict())
    with pytest.raises(StateError):
        again.load_state_dict({**saved, "replicas": {}})
    assert not again.state_dict()["steps"]
    again.load_state_dict(saved)
    expected, found = step(whole, rank, 2), step(model, rank, 2)
    assert all(bits_equal(expected[name], found[name]) for name in found)
    for one in (handle, again):
        assert one.replicas is not None
        one.replicas.switch("int8")
        one.switch("bf16")
    expected, found = step(whole, rank, 3), step(model, rank, 3)
    assert all(bits_equal(expected[name], found[name]) for name in found)
    again.detach()
    assert again.replicas is not None and again.replicas.method == again.method == grace.none()
    model.set_requires_all_reduce(False)
    with pytest.raises(UnsupportedError, match="set_requires_all_reduce"):
        step(model, rank, 4)


def test_state_and_switching_of_both_dimensions(launch: Any) -> None:
    launch(resuming, 4)


def one_shard(rank: int, world: int) -> None:
    axes = init_device_mesh("cpu", (4, 1), mesh_dim_names=("replicate", "shard"))
    model = sharded(Net, mesh=axes)
    with pytest.raises(grace.GraceError, match="sharded over a single rank"):
        grace.attach(model, "int8")


def test_a_mesh_without_shards_is_rejected(launch: Any) -> None:
    launch(one_shard, 4)


def checkpointed(rank: int, world: int, folder: str, mixed: bool) -> None:
    """Both dimensions, accumulated gradients and momenta, through `torch.distributed.checkpoint`."""
    axes = mesh()
    options: dict[str, Any] = {"mesh": axes}
    if mixed:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def make() -> tuple[Any, torch.optim.Optimizer, FSDPHandle]:
        model = sharded(**options)
        handle = attached(model, FEEDBACK, "topk:0.1,dense_below=0")
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), handle

    def train(model: Any, optimizer: torch.optim.Optimizer, number: int) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        for part in range(2):
            model.set_requires_gradient_sync(part == 1)
            model(batch(rank, 2 * number + part)).square().mean().backward()
        found = everywhere(model)
        optimizer.step()
        return found

    model, optimizer, handle = make()
    for number in range(2):
        train(model, optimizer, number)
    dcp.save({"model": model.state_dict(), "grace": grace.stateful(handle)}, checkpoint_id=folder)
    momenta = copy.deepcopy(optimizer.state_dict())
    expected = [train(model, optimizer, number) for number in range(2, 4)]
    assert handle.stats().ratio > 4

    again, optimizer, handle = make()
    saved = {"model": again.state_dict(), "grace": grace.stateful(handle)}
    dcp.load(saved, checkpoint_id=folder)
    again.load_state_dict(saved["model"])
    optimizer.load_state_dict(momenta)
    for number, wanted in enumerate(expected, 2):
        found = train(again, optimizer, number)
        assert all(bits_equal(found[name], wanted[name]) for name in wanted), number


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "mixed precision"])
def test_a_distributed_checkpoint_resumes_exactly(launch: Any, tmp_path: Any, mixed: bool) -> None:
    launch(checkpointed, 4, str(tmp_path), mixed, timeout=120)
