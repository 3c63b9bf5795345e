"""What ranks hold between the exchanges of local steps: buffers, frozen parameters, values that are not finite."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import grace_dl as grace
from contract.cases import bits_equal
from grace_dl.errors import ConfigError, LayoutError
from handles.local_training import alike, flat, inner, local, mean_of, nesterov, network

# Buffers ------------------------------------------------------------------------------------------------------


class Statistics(nn.Module):
    """Batch normalization beside a causal mask, and a mean that is assigned anew at every step."""

    mask: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(12, 4), nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(self.layer(x))
        self.mean = 0.5 * self.mean + 0.5 * found.detach().exp().mean(0)
        return found


def training_statistics(rank: int, world: int) -> tuple[Tensor, Tensor]:
    """The buffers after an exchange, and those of this rank before it."""
    torch.manual_seed(0)
    model = Statistics()
    optimizer = inner(model)
    outer = grace.LocalSteps(model, optimizer, grace.none(), every=3)
    before = torch.empty(0)
    for step in range(6):
        model(torch.randn(8, 12, generator=torch.Generator().manual_seed(2 * step + rank))).sum().backward()
        optimizer.step()
        before = torch.cat([model.norm.running_mean, model.norm.running_var, model.mean])  # type: ignore[list-item]
        outer.step()
    assert torch.equal(model.mask, torch.full((4, 4), float("-inf")).triu(1))
    after = torch.cat([model.norm.running_mean, model.norm.running_var, model.mean])  # type: ignore[list-item]
    model(torch.ones(8, 12))
    mine = model.mean.clone()
    with outer.at_anchor():
        assert bits_equal(model.mean, after[8:])
        model(torch.ones(8, 12))  # an evaluation that assigns a buffer
    assert bits_equal(model.mean, mine)
    return after, before


def test_a_buffer_that_is_not_finite_does_not_keep_others_from_being_averaged(launch):
    answers = launch(training_statistics, 2)
    assert alike([after for after, _ in answers])
    torch.testing.assert_close(answers[0][0], mean_of([before for _, before in answers]))


def test_a_buffer_that_changes_its_shape_is_named():
    model = Statistics()
    outer = grace.LocalSteps(model, inner(model), grace.none(), every=1)
    outer.step()
    model.mean = model.mean.double()
    with pytest.raises(ConfigError, match=r"'mean' was torch.float32 of shape \(4,\) .* now torch.float64"):
        outer.step()


UNUSUAL = [
    torch.bool,
    torch.int16,
    torch.uint16,
    torch.int64,
    torch.float8_e4m3fn,
    torch.bfloat16,
    torch.complex64,
]


def unusual_buffers(rank: int, world: int) -> None:
    model = nn.Linear(4, 4)
    for dtype in UNUSUAL:
        name = f"of_{str(dtype)[6:]}"
        model.register_buffer(name, torch.tensor([1.0 - rank, 0, 1]).to(dtype))
        model.register_buffer(f"{name}_scalar", torch.tensor(1.0 - rank).to(dtype))
    outer = grace.LocalSteps(model, inner(model), grace.none(), every=1)
    outer.step()
    for dtype in UNUSUAL:
        buffer = model.get_buffer(f"of_{str(dtype)[6:]}")
        assert buffer.dtype is dtype and buffer.to(torch.complex64).tolist() == [1, 0, 1], dtype


def test_buffers_of_any_dtype_are_those_of_rank_0_on_creation(launch):
    launch(unusual_buffers, 2)


# Parameters ---------------------------------------------------------------------------------------------------


def unfreezing(rank: int, world: int) -> Tensor:
    model: Any = network()[3:]
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    outer = grace.LocalSteps(model, optimizer, "int8", every=2)

    def train(steps: int) -> None:
        for _ in range(steps):
            model(torch.full((2, 16), 0.1 * (rank + 1))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            outer.step()

    train(3)
    outer.synchronize()
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters())})
    with pytest.raises(ConfigError, match=r"'3.weight', '3.bias'.*create LocalSteps again"):
        outer.synchronize()
    with pytest.raises(ConfigError, match=r"'3.weight', '3.bias'.*create LocalSteps again"):
        train(2)
    outer.close()
    outer = grace.LocalSteps(model, optimizer, "int8", every=2)
    train(2)
    return flat(model)


def test_a_parameter_that_is_unfrozen_is_not_left_out_in_silence(launch):
    assert alike(launch(unfreezing, 2))


def freezing(rank: int, world: int) -> Tensor:
    """The last parameter is frozen in the middle of a round, with momentum in the outer optimizer."""
    model: Any = network()[0:1]
    outer = grace.LocalSteps(model, optimizer := inner(model), "none", every=2, outer=nesterov(model))
    for step in range(5):
        local(model, optimizer, rank, step)
        outer.step()
    model[0].bias.requires_grad_(False)
    bias: list[Tensor] = []
    for step in range(5, 12):
        local(model, optimizer, rank, step)
        outer.step()
        bias.append(model[0].bias.detach().clone())
    assert not bits_equal(bias[0], outer._restored("0.bias") + 1)
    assert all(bits_equal(bias[0], later) for later in bias[1:])
    return bias[0]


def test_a_frozen_parameter_does_not_move_with_the_outer_momentum(launch):
    """What ranks had trained before still arrives."""
    assert alike(launch(freezing, 2))


# Values that are not finite -----------------------------------------------------------------------------------


def recovering(rank: int, world: int, settings: dict[str, Any]) -> tuple[Tensor, int, list[str]]:
    """One batch of rank 1 is not finite, and reaches the moments of its optimizer."""
    model = network()
    outer = grace.LocalSteps(model, optimizer := inner(model), "int8", **settings)
    start = flat(model).clone()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(16):
            if step == 5 and rank == 1:
                next(model.parameters()).grad = torch.full((16, 12), float("nan"))
            local(model, optimizer, rank, step)
            outer.step()
    outer.synchronize()
    assert flat(model).isfinite().all() and not bits_equal(flat(model), start)
    said = [str(each.message) for each in caught if "moments start anew" in str(each.message)]
    return flat(model), outer.stats().skipped, said


@pytest.mark.parametrize(
    "settings",
    [{"every": 4}, {"every": 4, "fragments": 2}, {"every": 4, "fragments": 2, "delay": 2, "merge": 0.5}],
    ids=["plain", "fragments", "delay"],
)
def test_a_batch_that_is_not_finite_ends_one_round_and_not_the_training(launch, settings):
    (one, skipped, silent), (other, same, said) = launch(recovering, 2, settings)
    assert bits_equal(one, other)
    assert skipped == same == 1
    assert not silent and len(said) == 1 and "'0.weight'" in said[0]


class StateOnCreation(torch.optim.Adagrad):
    """Like `Adagrad` of older releases, which makes no state for a parameter that has none."""

    def step(self, closure: Any = None) -> Any:
        assert all("sum" in self.state.get(p, {}) for group in self.param_groups for p in group["params"])
        return super().step(closure)


def test_an_optimizer_that_makes_its_state_on_creation_recovers():
    model = network()
    optimizer = StateOnCreation(model.parameters(), lr=0.01, initial_accumulator_value=0.5)
    outer = grace.LocalSteps(model, optimizer, "int8", every=2)
    next(model.parameters()).grad = torch.full((16, 12), float("nan"))
    with pytest.warns(UserWarning, match="moments start anew"):
        for step in range(2):
            local(model, optimizer, 0, step)
            outer.step()
    assert bool((optimizer.state[next(model.parameters())]["sum"] == 0.5).all())
    for step in range(2):
        local(model, optimizer, 0, step)
        outer.step()
    assert flat(model).isfinite().all() and outer.stats().skipped == 1


# Ranks that differ --------------------------------------------------------------------------------------------


def disagreeing(rank: int, world: int, what: str) -> str:
    settings: dict[str, Any] = {"every": 4}
    model = network()
    if what == "outer":
        settings["outer"] = torch.optim.SGD(model.parameters(), lr=0.5 + 0.1 * rank)
    elif what == "model":
        model = nn.Sequential(nn.Linear(12, 1 + rank))
    else:
        settings[what] = {"every": 4 + rank, "fragments": 1 + rank, "delay": rank, "merge": 0.1 * rank}[what]
    with pytest.raises(LayoutError) as error:
        grace.LocalSteps(model, inner(model), "int8", **settings)
    dist.barrier()
    return str(error.value)


@pytest.mark.parametrize("what", ["every", "fragments", "delay", "merge", "outer", "model"])
def test_ranks_compare_their_settings_on_creation(launch, what):
    for said in launch(disagreeing, 2, what):
        assert f"{'shapes' if what == 'model' else what}" in said and "All ranks must use the same" in said
