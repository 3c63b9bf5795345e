"""FSDP2 models: steps that fail, and what is rejected."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import grace_dl as grace
from fsdp.sharded import FEEDBACK, Net, batch, close, grads, owed, sharded, step
from grace_dl.errors import ConfigError, PeerError, UnsupportedError
from grace_dl.memory.residual import ResidualMemory
from grace_dl.methods.int8 import Int8Compressor

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
