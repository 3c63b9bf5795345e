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
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.utils.checkpoint import checkpoint

import grace_dl as grace
from contract.cases import bits_equal
from fsdp.sharded import Net, batch, close, grads, owed, plainly, sharded, step
from grace_dl.errors import ConfigError, PeerError, UnsupportedError
from grace_dl.memory.residual import ResidualMemory
from grace_dl.methods.int8 import Int8Compressor
from values import total

FEEDBACK = "int4:memory=residual,dense_below=0"


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


# Steps that fail -------------------------------------------------------------------------------------------


def not_finite(rank: int, world: int) -> None:
    model = sharded()
    handle = grace.attach(model, FEEDBACK)
    step(model, rank, 0)
    before, numbers = owed(handle, model), handle.state_dict()["steps"]
    before = {name: value.clone() for name, value in before.items()}
    model.zero_grad()
    hook = model.second.register_full_backward_hook(
        lambda _, inputs, outputs: (torch.full_like(inputs[0], float("nan")),) if rank == 1 else None
    )
    model(batch(rank, 1)).square().mean().backward()
    hook.remove()
    found = grads(model)
    # The gradient became NaN below the second layer, on one rank; the others' residuals are restored as well.
    assert found["first.weight"].isnan().all() and found["last.weight"].isfinite().all()
    assert close(before, owed(handle, model))
    assert handle.state_dict()["steps"] == numbers
    assert handle.stats().skipped == 1
    assert all(grad.isfinite().all() for grad in step(model, rank, 2).values())


@pytest.mark.parametrize("world", [2, 4])
def test_a_step_that_is_not_finite_leaves_residuals_as_they_were(launch: Any, world: int) -> None:
    launch(not_finite, world)


class Breaks(Int8Compressor):
    """Fails on one rank, for the slices of another."""

    def encode_from(self, source: Any, key: Any, out: Any = None) -> Any:
        if key.rank == 1 and key.step == 1 and key.name == "second.weight#0":
            raise ZeroDivisionError("no more numbers")
        return super().encode_from(source, key, out)


def failing(rank: int, world: int) -> None:
    model = sharded()
    handle = grace.attach(model, grace.custom(Breaks(), ResidualMemory(), dense_below=0))
    step(model, rank, 0)
    before = {name: value.clone() for name, value in owed(handle, model).items()}
    with pytest.raises(ZeroDivisionError if rank == 1 else PeerError):
        step(model, rank, 1)
    model.reset_iter_state()
    assert close(before, owed(handle, model))
    assert handle.stats().steps == 1


@pytest.mark.parametrize("world", [2, 4])
def test_a_rank_that_cannot_compress_is_reported_on_every_rank(launch: Any, world: int) -> None:
    """Also on ranks whose own slices are fine."""
    launch(failing, world)


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


def raising(rank: int, world: int) -> None:
    model, other = sharded(), sharded()
    handle, twin = grace.attach(model, FEEDBACK), grace.attach(other, FEEDBACK)
    for one in (model, other):
        step(one, rank, 0)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    hook = model.second.register_full_backward_hook(fail)
    model.zero_grad()
    with pytest.raises(ZeroDivisionError):
        model(batch(rank, 1)).square().mean().backward()
    hook.remove()
    model.reset_iter_state()
    assert close(owed(handle, model), owed(twin, other))
    assert handle.state_dict()["steps"] == twin.state_dict()["steps"]  # no step is under way
    # FSDP keeps gradients of the failed pass that it has not reduced, so the values of the next step are its own.
    assert all(grad.isfinite().all() for grad in step(model, rank, 2).values())
    assert handle.stats().steps == 2


def test_a_backward_pass_that_raises_is_rolled_back(launch: Any) -> None:
    launch(raising, 2)


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


# What is rejected ------------------------------------------------------------------------------------------


def rejecting(rank: int, world: int) -> None:
    model = sharded()
    for method in ("topk:0.01", "powersgd:2", "inceptionn", "demo", "schedule(0=none; 5=dgc:0.01)"):
        with pytest.raises(ConfigError, match=r"cannot go through a reduce-scatter.*int4"):
            grace.attach(model, method)
    with pytest.raises(ConfigError, match="communicator 'allgather'"):
        grace.attach(model, "int8:communicator=allgather")
    with pytest.raises(ConfigError, match="goes with a model sharded over a mesh of two dimensions"):
        grace.attach(model, "int8", replicas="topk:0.01")
    handle = grace.attach(model, "int8")
    with pytest.raises(ConfigError, match="attached already"):
        grace.attach(model, "int8")
    with pytest.raises(ConfigError, match="cannot go through"):
        handle.switch("topk:0.01")
    assert handle.method == grace.int8()
    step(model, rank, 0)
    with pytest.raises(ConfigError, match="sharded by fully_shard"):
        grace.attach(nn.Linear(2, 2), "int8")

    hook = next(model.parameters()).register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(UnsupportedError, match="post-accumulate-grad hook"):
        step(model, rank, 0)
    hook.remove()


def test_what_cannot_work_is_rejected(launch: Any) -> None:
    launch(rejecting, 2)


class Partial(Net):
    """Leaves parameters without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3)


def unused(rank: int, world: int) -> None:
    model = sharded(Partial)
    grace.attach(model, FEEDBACK)
    with pytest.raises(UnsupportedError, match="set_reduce_scatter_unused_params"):
        model(batch(rank, 0)).square().mean().backward()
    model.reset_iter_state()
    model.set_reduce_scatter_unused_params(True)
    assert not step(model, rank, 0)["unused.weight"].any()

    frozen = sharded()
    for parameter in frozen.first.parameters():
        parameter.requires_grad_(False)
    handle = grace.attach(frozen, FEEDBACK)
    for _ in range(2):
        frozen.zero_grad()
        frozen(batch(rank, 0)).square().mean().backward()
    assert "second.weight" in handle.state_dict()["steps"]
    assert "first.weight" not in handle.state_dict()["steps"]


def test_parameters_without_gradients(launch: Any) -> None:
    launch(unused, 2)


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
