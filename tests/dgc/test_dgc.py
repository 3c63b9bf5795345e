"""DGC as its users know it: settings, warm-up, selection, clipping, momentum, and the ways through the engines."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import grace_dl as grace
from dgc.clip_grad import (
    clip_grad_norm_,
    clip_grad_norm_2_by_global_,
    clip_grad_value_,
    clip_grad_value_by_global_norm_,
)
from dgc.compression import DGCCompressor
from dgc.horovod.compression import Compression, Compressor
from dgc.horovod.optimizer import DistributedOptimizer
from dgc.memory import DGCSGDMemory, Memory
from dgc.optim.sgd import DGCSGD
from grace_dl.errors import ConfigError
from values import not_none

README = [0.25, 0.063, 0.015, 0.004, 0.001]


def test_settings_and_their_defaults_are_those_people_know() -> None:
    found = {p.name: p.default for p in inspect.signature(DGCCompressor).parameters.values()}
    assert found == {
        "compress_ratio": 0.001,
        "memory": None,
        "sample_ratio": 0.01,
        "strided_sample": True,
        "compress_upper_bound": 1.3,
        "compress_lower_bound": 0.8,
        "max_adaptation_iters": 10,
        "resample": True,
        "fp16_values": False,
        "int32_indices": False,
        "warmup_epochs": -1,
        "warmup_coeff": None,
        "warmup_steps": 0,
    }
    assert list(inspect.signature(DGCSGDMemory).parameters) == [
        "momentum",
        "nesterov",
        "gradient_clipping",
        "momentum_masking",
    ]


# Warm-up ------------------------------------------------------------------------------------------------


def ratios(compressor: DGCCompressor, epochs: int = 7) -> list[float]:
    return [compressor.warmup_compress_ratio(epoch) for epoch in range(epochs)]


def test_warm_up_is_what_the_readme_promises() -> None:
    assert ratios(DGCCompressor(0.001, warmup_epochs=5, warmup_coeff=README)) == [*README, 0.001, 0.001]
    # Without a list: a quarter first, the ratio last, the same factor between.
    assert ratios(DGCCompressor(0.001, warmup_epochs=5)) == pytest.approx([*README, 0.001, 0.001], rel=0.06)


def test_other_warm_ups() -> None:
    assert ratios(DGCCompressor(0.01)) == [0.01] * 7
    assert ratios(DGCCompressor(0.01, warmup_epochs=1)) == [0.25] + [0.01] * 6
    assert ratios(DGCCompressor(0.01, warmup_epochs=3, warmup_coeff=0.5), 4) == [0.5, 0.25, 0.125, 0.01]
    # The promise of 0.1 % does not send less than what was asked for.
    assert (
        ratios(DGCCompressor(0.01, warmup_epochs=5, warmup_coeff=README)) == [0.25, 0.063, 0.015] + [0.01] * 4
    )
    with pytest.raises(ConfigError, match="2 entries"):
        DGCCompressor(warmup_epochs=5, warmup_coeff=[0.5, 0.1])
    with pytest.raises(ConfigError, match="warmup_epochs"):
        DGCCompressor(warmup_epochs=1.5)  # type: ignore[arg-type]


def test_warm_up_in_steps_follows_by_itself() -> None:
    handle = grace.manual(DGCCompressor(0.01, warmup_epochs=2, warmup_coeff=[1.0, 0.1], warmup_steps=2))
    sent = [int((handle.step(torch.randn(50, 50), "w") != 0).sum()) for _ in range(6)]
    assert sent[:2] == [2500, 2500]
    assert all(200 <= count <= 250 for count in sent[2:4])
    assert all(20 <= count <= 25 for count in sent[4:])


def test_warm_up_by_epochs_moves_the_state_whole() -> None:
    """The ratio changes under a handle that is attached; momentum and what was not sent go on."""
    compression = DGCCompressor(
        0.01, DGCSGDMemory(0.9, momentum_masking=False), warmup_epochs=2, warmup_coeff=[0.5, 0.1]
    )
    handle = grace.manual(compression)
    ones, sent = torch.ones(50, 50), torch.zeros(50, 50)
    counts = []
    for epoch in range(4):
        compression.warmup_compress_ratio(epoch)
        result = handle.step(ones + torch.rand(50, 50) / 1000, "w")
        sent += result
        counts.append(int((result != 0).sum()))
    assert counts[0] > counts[1] > counts[2] and counts[1] <= 250 and max(counts[2:]) <= 25
    owed = handle.session.residual("w")
    assert owed is not None
    # Momentum 0.9: 1 + 1.9 + 2.71 + 3.439 of every unit has been accumulated.
    assert torch.allclose(sent.view(-1) + owed, torch.full((2500,), 9.049), atol=0.02)


# Selection ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("resample", [True, False])
def test_overshoot_is_trimmed_by_magnitude(ratio: float, resample: bool) -> None:
    for seed in range(8):
        handle = grace.manual(
            DGCCompressor(ratio, DGCSGDMemory(0.0), resample=resample).method_with(seed=seed)
        )
        x = torch.randn(100, 200, generator=torch.Generator().manual_seed(seed))
        sent = handle.step(x, "w").view(-1)
        count = int((sent != 0).sum())
        assert 1 <= count <= ratio * x.numel() + 1
        if resample:
            assert count >= 0.8 * ratio * x.numel() - 1
        largest = x.view(-1).abs().topk(count).indices
        assert set(sent.nonzero().view(-1).tolist()) == set(largest.tolist())


def test_ratios_above_one_and_small_samples_are_understood_as_in_dgc() -> None:
    assert DGCCompressor(1000).base_compress_ratio == 0.001
    assert DGCCompressor(0.1, sample_ratio=0.0001).sample_ratio == 0.01


def test_initialize_chooses_what_is_compressed() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(50, 40), nn.Linear(40, 30)
    model = nn.Sequential(first, second)
    compressor = DGCCompressor(0.01)
    compressor.initialize([("1.weight", second.weight)])
    assert compressor.attributes["1.weight"].num_selects == 12
    optimizer = DistributedOptimizer(DGCSGD(model.parameters(), lr=0.1), model.named_parameters(), compressor)
    model(torch.randn(16, 50)).square().mean().backward()
    assert int(not_none(first.weight.grad).count_nonzero()) == 2000
    assert int(not_none(second.weight.grad).count_nonzero()) <= 12
    assert optimizer.grace.stats().steps == 1


def test_bad_arguments_are_refused() -> None:
    weight = nn.Parameter(torch.zeros(3))
    with pytest.raises(ConfigError, match="DGCSGDMemory"):
        DGCCompressor(memory="dgc")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="error feedback"):
        DGCCompressor(memory=Memory())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="compress_ratio=0"):
        DGCCompressor(0)
    with pytest.raises(ConfigError, match="compress_lower_bound"):
        DGCCompressor(0.1, compress_lower_bound=2)
    with pytest.raises(ConfigError, match=r"grace\.custom"):
        DistributedOptimizer(DGCSGD([weight], lr=1), [("w", weight)], Compressor())
    with pytest.raises(TypeError, match="lr"):
        DGCSGD([weight])
    with pytest.raises(ConfigError, match="'w'"):
        DGCCompressor().initialize([("w", weight), ("w", nn.Parameter(torch.zeros(2)))])
    with pytest.raises(ConfigError, match="pair"):
        DGCSGDMemory().initialize([weight])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="lr=-1"):
        DGCSGD([weight], lr=-1)
    with pytest.raises(ConfigError, match="nesterov needs momentum"):
        DGCSGD([weight], lr=1, nesterov=True)
    with pytest.raises(ConfigError, match="averages"):
        DistributedOptimizer(DGCSGD([weight], lr=1), [("w", weight)], op="sum")


# Momentum -----------------------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 40))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    forward: nn.Module | None = None,
    seed: int = 0,
) -> torch.Tensor:
    data = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        (forward or model)(torch.randn(8, 40, generator=data)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("ratio", [1.0, 0.999999])
def test_without_loss_it_walks_the_path_of_plain_sgd(
    nesterov: bool, weight_decay: float, ratio: float
) -> None:
    """Momentum in the memory plus momentum of the decay in the optimizer is the momentum of SGD."""
    settings: dict[str, Any] = {
        "lr": 0.5,
        "momentum": 0.9,
        "weight_decay": weight_decay,
        "nesterov": nesterov,
    }
    plain = network()
    expected = train(plain, torch.optim.SGD(plain.parameters(), **settings), 12)
    model = network()
    # Masking zeroes momentum wherever something is sent, which is everywhere here.
    memory = DGCSGDMemory(0.9, nesterov, momentum_masking=False)
    optimizer = DistributedOptimizer(
        DGCSGD(model.parameters(), **settings),
        model.named_parameters(),
        DGCCompressor(ratio, memory, sample_ratio=1.0),
    )
    assert torch.allclose(train(model, optimizer, 12), expected, atol=1e-6)


def test_optimizer_and_memory_must_agree() -> None:
    weight = nn.Parameter(torch.zeros(30, 30))
    optimizer = DGCSGD([weight], lr=0.1, momentum=0.9, nesterov=True)
    with pytest.raises(ConfigError, match="does not reach"):
        DistributedOptimizer(optimizer, [("w", weight)], DGCCompressor(memory=DGCSGDMemory(0.9)))
    optimizer = DGCSGD([weight], lr=0.1, momentum=0.5, weight_decay=0.1)
    with pytest.raises(ConfigError, match=r"momentum=0\.5"):
        DistributedOptimizer(optimizer, [("w", weight)], DGCCompressor(memory=DGCSGDMemory(0.9)))
    with pytest.warns(UserWarning, match="on top of"):
        DistributedOptimizer(
            torch.optim.SGD([weight], lr=0.1, momentum=0.9), [("w", weight)], DGCCompressor()
        )


# Clipping -----------------------------------------------------------------------------------------------


def test_clipping_returns_the_gradient() -> None:
    assert clip_grad_norm_(torch.tensor([3.0, 4.0]), 2.5).tolist() == [1.5, 2.0]
    assert clip_grad_norm_(torch.tensor([3.0, 4.0]), 8.0, float("inf")).tolist() == [3.0, 4.0]
    assert clip_grad_value_(torch.tensor([3.0, -4.0]), 1.0).tolist() == [1.0, -1.0]
    assert clip_grad_norm_2_by_global_(torch.tensor([3.0, 4.0]), 2.5).tolist() == [1.5, 2.0]
    assert clip_grad_value_by_global_norm_(torch.tensor([3.0, 4.0])).tolist() == [3.0, 4.0]
    with pytest.raises(ConfigError, match="max_norm"):
        clip_grad_norm_(torch.zeros(2), 0.0)


@pytest.mark.parametrize(
    "clipping",
    [
        2.0,
        functools.partial(clip_grad_norm_, max_norm=2.0),
        functools.partial(clip_grad_value_, clip_value=0.1),
    ],
)
def test_clipping_inside_the_memory(clipping: Any) -> None:
    memory = DGCSGDMemory(0.0, gradient_clipping=clipping)
    handle = grace.manual(DGCCompressor(0.5, memory))
    gradient = torch.randn(40, 40)
    before = gradient.clone()
    result = handle.step(gradient, "w")
    assert torch.equal(gradient, before)
    expected = (
        before.clamp(-0.1, 0.1)
        if getattr(clipping, "keywords", {}).get("clip_value")
        else before * 2 / before.norm()
    )
    residual = handle.session.residual("w")
    assert residual is not None
    assert torch.allclose(result + residual.view_as(result), expected, atol=1e-6)


def test_clipping_that_exchanges_is_refused_in_the_memory() -> None:
    with pytest.raises(ConfigError, match="give the norm itself"):
        DGCSGDMemory(gradient_clipping=functools.partial(clip_grad_norm_2_by_global_, max_norm=1.0))


def clip_globally(rank: int, world: int) -> list[list[float]]:
    gradient = torch.tensor([6.0, 8.0]) if rank else torch.zeros(2)
    # Mean square over ranks: 50.
    return [
        clip_grad_norm_2_by_global_(gradient.clone(), 50**0.5 / 2).tolist(),
        clip_grad_value_by_global_norm_(10 * gradient).tolist(),
    ]


def test_global_clipping_uses_all_ranks(launch: Any) -> None:
    assert launch(clip_globally, 2)[1] == [pytest.approx([3.0, 4.0]), pytest.approx([60.0, 50 * 2**0.5])]


# Engines ------------------------------------------------------------------------------------------------


def both_engines(rank: int, world: int) -> dict[str, Any]:
    """DGC through DDP, and without DDP through the reducer, two backward passes a step as well."""
    settings: dict[str, Any] = {"lr": 0.2, "momentum": 0.9, "weight_decay": 1e-3}

    def compression() -> DGCCompressor:
        return DGCCompressor(
            0.05, DGCSGDMemory(0.9, gradient_clipping=1.0), fp16_values=True, warmup_epochs=2, warmup_steps=2
        )

    model = network()
    ddp = DistributedDataParallel(model)
    handle = grace.attach(ddp, compression())
    through_ddp = train(model, DGCSGD(model.parameters(), **settings), 8, ddp, seed=rank)

    model = network()
    optimizer = DistributedOptimizer(
        DGCSGD(model.parameters(), **settings), model.named_parameters(), compression()
    )
    through_reducer = train(model, optimizer, 8, seed=rank)
    stats = handle.stats()

    model = network()
    optimizer = DistributedOptimizer(
        DGCSGD(model.parameters(), **settings),
        model.named_parameters(),
        compression(),
        backward_passes_per_step=2,
    )
    data = torch.Generator().manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(2):
            model(torch.randn(8, 40, generator=data)).square().mean().backward()
        optimizer.step()
    return {
        "ddp": through_ddp,
        "reducer": through_reducer,
        "passes": torch.cat([p.detach().reshape(-1) for p in model.parameters()]),
        "steps": optimizer.grace.stats().steps,
        "ratio": stats.ratio,
    }


def test_through_ddp_and_without(launch: Any) -> None:
    a, b = launch(both_engines, 2)
    assert torch.equal(a["ddp"], b["ddp"]) and torch.equal(a["passes"], b["passes"])
    assert torch.equal(a["ddp"], a["reducer"])
    assert not torch.equal(a["ddp"], torch.cat([p.detach().reshape(-1) for p in network().parameters()]))
    assert a["steps"] == 3
    assert a["ratio"] > 3


def test_state_goes_on_where_it_was() -> None:
    def step(handle: Any, seed: int) -> torch.Tensor:
        return handle.step(torch.randn(60, 60, generator=torch.Generator().manual_seed(seed)), "w")

    first = grace.manual(DGCCompressor(0.01).method_with(seed=5))
    for seed in range(3):
        step(first, seed)
    second = grace.manual(DGCCompressor(0.01).method_with(seed=5))
    second.load_state_dict(first.state_dict())
    assert torch.equal(step(first, 9), step(second, 9))


# Lines of DGC's own scripts ------------------------------------------------------------------------------


def test_the_training_script_of_dgc(tmp_path: Any) -> None:
    """The lines of DGC's train.py, checkpoints included; a run that goes on is the run that did not stop."""

    def build() -> tuple[nn.Module, Any, DGCCompressor]:
        model = network()
        memory = DGCSGDMemory(momentum=0.9)
        compression = DGCCompressor(0.05, memory=memory, sample_ratio=1.0, warmup_epochs=2)
        compression.memory.initialize(model.named_parameters())
        compression.initialize([(name, p) for name, p in model.named_parameters() if p.dim() > 1])
        optimizer = DGCSGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        optimizer = DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=compression,
            backward_passes_per_step=1,
        )
        return model, optimizer, compression

    model, optimizer, compression = build()
    for epoch in range(2):
        compression.warmup_compress_ratio(epoch)
        train(model, optimizer, 3, seed=epoch)
    saved = (model.state_dict(), optimizer.state_dict(), compression.memory.state_dict())
    torch.save(saved, tmp_path / "e1.pth")
    assert set(saved[2]) == {"momentums", "velocities"}
    assert set(saved[2]["momentums"]) == {name for name, _ in model.named_parameters()}

    again, second, other = build()
    weights, states, memories = torch.load(tmp_path / "e1.pth")
    again.load_state_dict(weights)
    second.load_state_dict(states)
    other.memory.load_state_dict(memories)
    for run, of_run, ratio in ((model, optimizer, compression), (again, second, other)):
        ratio.warmup_compress_ratio(2)
        train(run, of_run, 3, seed=2)
    for one, two in zip(model.parameters(), again.parameters()):
        assert torch.allclose(one, two, atol=1e-6)


def test_the_memory_says_whose_state_it_holds() -> None:
    with pytest.raises(ConfigError, match="serves 0 optimizers"):
        DGCSGDMemory().state_dict()


def test_without_dgc() -> None:
    """`Compression.none()`, which is also the default: plain averaging, the optimizer's own momentum."""
    runs = []
    for compression in (None, Compression.none, Compression.none(), Compression.fp16):
        model = network()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if compression is None:
            optimizer = DistributedOptimizer(optimizer, model.named_parameters())
        else:
            optimizer = DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)
        runs.append(train(model, optimizer, 3))
        assert optimizer.grace.stats().steps == 3
    plain = network()
    expected = train(plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), 3)
    assert all(torch.allclose(run, expected, atol=1e-6) for run in runs[:3])
    assert torch.allclose(runs[3], expected, atol=1e-3)


def test_learning_rates_of_groups() -> None:
    optimizer = DGCSGD([{"params": [nn.Parameter(torch.zeros(3))], "lr": 0.5}])
    assert optimizer.param_groups[0]["lr"] == 0.5
