"""What only a DDP model does: it is copied and saved with its hook, and joins ranks with fewer batches."""

from __future__ import annotations

import copy
import gc
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import grace_dl as grace
from ddp_models import BUCKET_MB, LOSSY, attach, batches, build, flat, train
from grace_dl.errors import ConfigError, PayloadError
from values import not_none


def copied(rank: int, world: int, how: str) -> torch.Tensor:
    model, handle = attach(build(), LOSSY)
    inputs = batches(rank, 6)
    train(model, inputs[:2])
    if how == "deepcopy":
        twin = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    assert torch.equal(flat(twin), flat(model))
    # The copy is a plain DDP model, and the original goes on.
    plain = DDP(copy.deepcopy(model.module), bucket_cap_mb=BUCKET_MB)
    assert torch.allclose(flat(train(twin, inputs[2:4])), flat(train(plain, inputs[2:4])))
    assert handle.stats().steps == 2
    train(model, inputs[2:4])
    assert handle.stats().steps == 4
    # It can be attached to, and shares nothing.
    second = grace.attach(twin, "powersgd:1")
    train(twin, inputs[4:])
    assert (second.stats().steps, handle.stats().steps) == (2, 4)
    return torch.cat([flat(model), flat(twin)])


@pytest.mark.parametrize("how", ["deepcopy", "torch.save"])
def test_copies_of_an_attached_model(launch: Any, how: str) -> None:
    a, b = launch(copied, 2, how)
    assert torch.equal(a, b)


def joined(rank: int, world: int, text: str) -> int:
    model, handle = attach(build(), text)
    with model.join():
        train(model, batches(rank, 3 + rank))
    return handle.stats().steps


@pytest.mark.parametrize("text", ["topk:0.1", "powersgd:2", "int8", "none"])
def test_join_with_uneven_inputs(launch: Any, text: str) -> None:
    assert launch(joined, 2, text) == [4, 4]


class Tracks(nn.Module):
    """Uses its side branch when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side = nn.Linear(20, 64), nn.Linear(20, 64)
        self.with_side = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.main(x) + self.side(x) if self.with_side else self.main(x)


def owing_while_unused(rank: int, world: int) -> None:
    """detach() pays with the next gradient; a parameter that no rank uses has none, and goes on owing."""
    model, handle = attach(build(Tracks), grace.topk(0.05, dense_below=0), find_unused_parameters=True)
    x = batches(rank, 1)[0]
    model(x).square().mean().backward()
    owed = handle.session.residual("side.weight")
    assert owed is not None and owed.abs().sum() > 0
    handle.detach()
    model.zero_grad()
    model.module.with_side = False
    model(x).square().mean().backward()
    assert torch.equal(not_none(handle.session.residual("side.weight")), owed)
    assert handle.session.residual("main.weight") is None
    model.module.with_side = True
    model.zero_grad()
    model(x).square().mean().backward()
    assert handle.session.residual("side.weight") is None
    handle.close()
    assert all(not p._post_accumulate_grad_hooks for p in model.parameters())


def test_an_unused_parameter_goes_on_owing(launch: Any) -> None:
    launch(owing_while_unused, 2)


def paying_in_a_skipped_step(rank: int, world: int) -> None:
    """The step that pays overflows in another bucket: users skip it, so that it must not count as paid."""
    model, handle = attach(build(), grace.by_parameter({"0.*": grace.none()}, default=LOSSY))
    inputs = batches(rank, 4)
    train(model, inputs[:2])
    owed = not_none(handle.session.residual("2.weight")).clone()
    handle.detach()
    x = inputs[2].clone()
    model.zero_grad()
    loss = model(x).square().mean()
    # Infinite in the gradient of the first layer alone, which owes nothing.
    (loss + (model.module[0].weight.sum() * float("inf") if rank == 1 else 0)).backward()
    assert torch.equal(not_none(handle.session.residual("2.weight")), owed)
    assert handle.stats().skipped == 1
    train(model, inputs[3:])
    assert handle.session.residual("2.weight") is None


def test_a_step_that_overflows_pays_nothing(launch: Any) -> None:
    launch(paying_in_a_skipped_step, 2)


def test_options_of_optimizers_are_refused_for_models() -> None:
    with pytest.raises(ConfigError, match="go with an optimizer"):
        grace.attach(nn.Linear(2, 2), "none", backward_passes=2)  # type: ignore[arg-type]


class Fails(torch.autograd.Function):
    """Raises in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of memory, or so it seems")


class Failing(nn.Module):
    """Three layers; the first is behind a step that raises, when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(20, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.armed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        return self.c(self.b(Fails.apply(x) if self.armed else x))


def raised(rank: int, world: int, text: str) -> None:
    """DDP itself does not go on after a backward pass that raised, but its handle does."""
    model, handle = attach(build(Failing), text)
    inputs = batches(rank, 3)
    train(model, inputs[:2])
    names = [name for name, _ in model.module.named_parameters()]
    session: Any = handle.session
    before = {name: session.residual(name).clone() for name in names}
    model.module.armed = True
    with pytest.raises(RuntimeError, match="out of memory"):
        model(inputs[2]).square().mean().backward()
    for name, owed in before.items():
        assert torch.allclose(session.residual(name), owed, atol=1e-6), name
    state = handle.state_dict()
    handle.switch("none")
    fresh, again = attach(build(Failing), text)
    again.load_state_dict(state)
    train(fresh, inputs[:1])


@pytest.mark.parametrize("text", ["topk:0.1,dense_below=0", "int8:memory=residual,dense_below=0"])
def test_a_backward_pass_that_raised_is_taken_back(launch: Any, text: str) -> None:
    launch(raised, 2, text)


def refused_by_the_hook(rank: int, world: int) -> None:
    """An error in the hook says that DDP itself does not go on, and what does."""
    model, handle = attach(build(Failing), "topk:0.1,dense_below=0")
    inputs = batches(rank, 4)
    train(model, inputs[:1])

    def broken(bucket: Any) -> Any:
        raise PayloadError("rank 1 sent something else.")

    vars(handle)["_bucket"] = broken
    with pytest.raises(
        PayloadError, match=r"something else\. .*takes no further step.*delete it, wrap the bare model anew"
    ):
        model(inputs[1]).square().mean().backward()
    del vars(handle)["_bucket"]
    with pytest.raises(RuntimeError):
        model(inputs[2]).square().mean().backward()
    state, bare = handle.state_dict(), model.module
    handle.close()
    bare.zero_grad()
    del model, handle
    gc.collect()  # the hooks of the first one are gone with it
    fresh, again = attach(DDP(bare, bucket_cap_mb=BUCKET_MB), "topk:0.1,dense_below=0")
    again.load_state_dict(state)
    train(fresh, inputs[3:])


def test_an_error_in_the_hook_foretells_that_ddp_does_not_go_on(launch: Any) -> None:
    launch(refused_by_the_hook, 2)
