"""FSDP2 models over 2 and 4 ranks, beside plain FSDP2."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.utils.checkpoint import checkpoint

import grace_dl as grace
from contract.cases import bits_equal
from fsdp.sharded import FEEDBACK, Net, batch, close, grads, owed, plainly, sharded, step
from values import total

# The same as plain FSDP2 -----------------------------------------------------------------------------------


def uncompressed(rank: int, world: int) -> None:
    plain, model = plainly(sharded()), sharded()
    handle = grace.attach(model, "none")
    for number in range(3):
        expected, found = step(plain, rank, number), step(model, rank, number)
        for name in expected:
            # Two ranks add up in one way only.
            assert close({name: expected[name]}, {name: found[name]}), name
            assert world > 2 or bits_equal(expected[name], found[name]), name
    stats = handle.stats()
    assert stats.steps == 3 and stats.collectives == 9 and stats.skipped == 0


@pytest.mark.parametrize("world", [2, 4])
def test_without_compression_it_is_plain_fsdp(launch: Any, world: int) -> None:
    launch(uncompressed, world)


def as_plain(rank: int, world: int, method: str, tolerance: float) -> None:
    """Settings of FSDP2 that change how gradients are reduced."""

    def pair(**options: Any) -> tuple[Any, Any]:
        plain, model = plainly(sharded(**options)), sharded(**options)
        grace.attach(model, method)
        return plain, model

    def alike(plain: Any, model: Any) -> None:
        for number in range(2):
            expected, found = step(plain, rank, number), step(model, rank, number)
            assert close(expected, found, tolerance)
            assert all(found[name].dtype == expected[name].dtype for name in found)

    for reduced in (torch.bfloat16, torch.float32, torch.float16):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
        alike(*pair(mp_policy=policy))
    alike(*pair(reshard_after_forward=False))

    plain, model = pair()
    for one in (plain, model):
        for module in one.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(3.0)
    alike(plain, model)

    torch.set_default_dtype(torch.float64)
    try:
        alike(*pair())
    finally:
        torch.set_default_dtype(torch.float32)

    def wide() -> Net:
        return Net(8 * world)

    columns = {"shard_placement_fn": lambda p: Shard(p.ndim - 1) if p.shape[-1] % world == 0 else None}
    plain, model = plainly(sharded(wide, **columns)), sharded(wide, **columns)
    grace.attach(model, method)
    alike(plain, model)


@pytest.mark.parametrize("method, tolerance", [("none", 2e-3), ("bf16", 1e-2)])
def test_settings_of_fsdp_apply(launch: Any, method: str, tolerance: float) -> None:
    """Mixed precision, divide factors, columns as shards, no resharding, float64."""
    launch(as_plain, 2, method, tolerance)


def accumulating(rank: int, world: int) -> None:
    plain, model = plainly(sharded()), sharded()
    handle = grace.attach(model, "none")

    def passes(one: Any, synchronised: tuple[bool, ...]) -> Any:
        one.zero_grad()
        for number, synchronise in enumerate(synchronised):
            one.set_requires_gradient_sync(synchronise)
            one(batch(rank, number)).square().mean().backward()
        return grads(one)

    # Accumulated before the exchange, and after each of two.
    for synchronised, steps in (((False, False, True), 1), ((True, True), 2)):
        before = handle.stats().steps
        assert close(passes(plain, synchronised), passes(model, synchronised))
        assert handle.stats().steps == before + steps


def test_gradients_accumulate(launch: Any) -> None:
    launch(accumulating, 2)


class Twice(Net):
    """Runs a layer twice, and computes another again in backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        x = checkpoint(self.second, self.second(x), use_reentrant=False)  # type: ignore[assignment]
        return self.last(x)  # type: ignore[no-any-return]


def twice(rank: int, world: int) -> None:
    plain, model, lossy = plainly(sharded(Twice)), sharded(Twice), sharded(Twice)
    grace.attach(model, "none")
    handle = grace.attach(lossy, FEEDBACK)
    expected = [step(plain, rank, number) for number in range(4)]
    assert all(close(e, step(model, rank, number)) for number, e in enumerate(expected))
    found = [step(lossy, rank, number) for number in range(4)]
    for name, residual in owed(handle, lossy).items():
        dist.all_reduce(residual)
        off = total(f[name] for f in found) + residual / world - total(e[name] for e in expected)
        assert off.abs().max() < 1e-5, name


def test_a_module_may_run_twice_and_be_recomputed(launch: Any) -> None:
    launch(twice, 2)


# Compressed --------------------------------------------------------------------------------------------------


def conserving(rank: int, world: int, method: str) -> None:
    """All results and what all ranks still owe are all gradients."""
    plain, model = plainly(sharded()), sharded()
    handle = grace.attach(model, method)
    got = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    given = copy.deepcopy(got)
    for number in range(4):
        for name, grad in step(plain, rank, number).items():
            given[name] += grad
        for name, grad in step(model, rank, number).items():
            got[name] += grad
        for name, residual in owed(handle, model).items():
            dist.all_reduce(residual)
            off = (got[name] + residual / world - given[name]).abs().max()
            assert off < 1e-5, f"{name} at step {number}: off by {off}"
            assert not bits_equal(got[name], given[name]) or "none" in method


@pytest.mark.parametrize(
    "world, method",
    [
        (2, FEEDBACK),
        (4, FEEDBACK),
        (2, "bf16:memory=residual"),
        (4, "by_parameter(*.bias=none; second.*=int8:memory=residual; default=fp8:memory=residual)"),
    ],
)
def test_error_feedback_loses_nothing(launch: Any, world: int, method: str) -> None:
    launch(conserving, world, method)


def counting(rank: int, world: int) -> float:
    model = sharded(lambda: Net(256))
    handle = grace.attach(model, "int4")
    step(model, rank, 0)
    stats = handle.stats()
    # What leaves a rank is a share of what it encodes: its own slices stay.
    assert stats.leaving_bytes == pytest.approx(stats.payload_bytes * (world - 1) / world, rel=0.01)
    handle.switch("bf16")
    step(model, rank, 0)
    wide = handle.stats()
    assert wide.payload_bytes - stats.payload_bytes == pytest.approx(stats.dense_bytes / 2, rel=0.01)
    return stats.ratio


@pytest.mark.parametrize("world", [2, 4])
def test_fewer_bytes_are_sent(launch: Any, world: int) -> None:
    assert all(ratio > 6.5 for ratio in launch(counting, world))


def learning(rank: int, world: int, method: str) -> float:
    model = sharded()
    grace.attach(model, method)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    target = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
    for number in range(60):
        x = batch(rank, number)
        optimizer.zero_grad()
        loss = (model(x) - x @ target).square().mean()
        loss.backward()
        optimizer.step()
    dist.all_reduce(loss.detach_())
    return float(loss) / world


def test_compressed_models_learn(launch: Any) -> None:
    plain, compressed = (launch(learning, 2, method)[0] for method in ("none", "int4"))
    assert compressed < 1.1 * plain


# Checkpoints -----------------------------------------------------------------------------------------------


def resuming(rank: int, world: int, folder: str) -> None:
    """Model, optimizer and method through `torch.distributed.checkpoint`."""

    def make() -> tuple[Any, torch.optim.Optimizer, grace.Handle]:
        model = sharded()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), grace.attach(model, FEEDBACK)

    whole, optimizer, _ = make()
    expected = [step(whole, rank, number, optimizer) for number in range(6)]

    model, optimizer, handle = make()
    for number in range(3):
        step(model, rank, number, optimizer)
    dcp.save({"model": model.state_dict(), "grace": grace.stateful(handle)}, checkpoint_id=folder)
    momenta = copy.deepcopy(optimizer.state_dict())
    handle.close()

    model, optimizer, handle = make()
    saved = {"model": model.state_dict(), "grace": grace.stateful(handle)}
    dcp.load(saved, checkpoint_id=folder)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(momenta)
    for number in range(3, 6):
        found = step(model, rank, number, optimizer)
        assert all(bits_equal(found[name], expected[number][name]) for name in found), number


def test_a_distributed_checkpoint_resumes_exactly(launch: Any, tmp_path: Any) -> None:
    launch(resuming, 2, str(tmp_path))


# Other models, and closing -----------------------------------------------------------------------------------


def released(rank: int, world: int) -> None:
    model = sharded()
    handle = grace.attach(model, FEEDBACK)
    step(model, rank, 0)
    watched = weakref.ref(model)
    del model
    gc.collect()
    assert watched() is None
    assert handle.stats().steps == 1
    handle.close()


def test_a_handle_does_not_keep_its_model(launch: Any) -> None:
    launch(released, 2)


def compiled(rank: int, world: int) -> None:
    model = sharded()
    handle = grace.attach(torch.compile(model, backend="eager"), "int8")  # type: ignore[arg-type]
    step(model, rank, 0)
    assert handle.stats().steps == 1


def test_a_compiled_model_is_attached_by_its_original(launch: Any) -> None:
    launch(compiled, 2)


def alone(rank: int, world: int) -> None:
    plain = Net()
    torch.manual_seed(0)
    model = sharded()
    handle = grace.attach(model, "int8")
    found = step(model, rank, 0)
    plain.load_state_dict({name: p.full_tensor() for name, p in model.state_dict().items()})
    plain(batch(rank, 0)).square().mean().backward()
    assert close(found, {name: p.grad for name, p in plain.named_parameters() if p.grad is not None})
    handle.close()


def test_one_rank(launch: Any) -> None:
    launch(alone, 1)


def closing(rank: int, world: int) -> None:
    """Two modules are sharded together; closed, it is plain FSDP again."""
    torch.manual_seed(0)
    model = Net()
    fully_shard([model.first, model.second])
    fully_shard(model)
    handle = grace.attach(model, "int8")
    loss = model(batch(rank, 0)).square().mean()
    loss.backward()
    assert set(handle.state_dict()["steps"]) == {name for name, _ in model.named_parameters()}
    assert handle.stats().collectives == 2
    handle.close()
    plainly(model)
    model(batch(rank, 0)).square().mean().backward()
    assert handle.stats().steps == 1


def test_modules_sharded_together_and_closed(launch: Any) -> None:
    launch(closing, 2)
