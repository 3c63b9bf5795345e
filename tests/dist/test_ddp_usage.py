"""DDP as people use it: each way of use gives plain DDP's result where nothing is lost, and identical replicas where
something is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

import grace_dl as grace
from ddp_models import BUCKET_MB, EXACT, LOSSY, MLP, attach, batches, build, flat
from grace_dl.errors import UnsupportedError


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(20, 64, bias=False)
        self.out = nn.Linear(64, 20, bias=False)
        self.again = nn.Linear(20, 64, bias=False)
        self.again.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.out(self.embed(x).relu()))


class Frozen(MLP):
    def __init__(self) -> None:
        super().__init__()
        self[2].weight.requires_grad_(False)


class Mixed(nn.Module):
    """float32 outside, bfloat16 inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(20, 64)
        self.inner = nn.Linear(64, 64).to(torch.bfloat16)
        self.last = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(self.first(x).to(torch.bfloat16)).float())


class AllOneDimensional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4096))
        self.shift = nn.Parameter(torch.randn(4096))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x.repeat(1, 205)[:, :4096] * self.scale) + self.shift


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x.view(-1, 3, 8, 8).contiguous(memory_format=torch.channels_last))


class Branches(nn.Module):
    """The side branch is used every other step only."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side, self.never = nn.Linear(20, 64), nn.Linear(20, 64), nn.Linear(20, 64)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.main(x)
        return y + self.side(x) if self.calls % 2 else y


class Checkpointed(MLP):
    """Computes its middle layers again in backward."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        first, *middle, last = self
        return last(checkpoint(nn.Sequential(*middle), first(input), use_reentrant=False))  # type: ignore[no-any-return]


class CheckpointedLast(MLP):
    """Computes its last layers again, in a backward pass of their own within the backward pass."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        first, *rest = self
        return checkpoint(nn.Sequential(*rest), first(input), use_reentrant=True)  # type: ignore[no-any-return]


class Adapted(nn.Module):
    """A frozen layer with a trained low-rank adapter, as in parameter-efficient fine-tuning."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(20, 64).requires_grad_(False)
        self.down, self.up = nn.Linear(20, 8, bias=False), nn.Linear(8, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.up(self.down(x))  # type: ignore[no-any-return]


class Many(nn.Module):
    """500 small parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.randn(20)) for _ in range(500))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x * scale for scale in self.scales]).sum(0)


def double() -> nn.Module:
    return nn.Sequential(ToDouble(), MLP().double())


class ToDouble(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()


@dataclass
class Usage:
    make: Callable[[], nn.Module] = MLP
    ddp: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (6, 20)
    accumulate: int = 1
    clip: float | None = None
    members: tuple[int, ...] | None = None
    """Ranks of the process group; all if None."""
    tolerance: float = 1e-6
    compress_all: bool = False
    """Also parameters that are sent as they are by default, because they are small."""


USAGES = {
    "several buckets": Usage(),
    "no_sync": Usage(accumulate=3),
    "find_unused": Usage(Branches, {"find_unused_parameters": True}),
    "static_graph": Usage(ddp={"static_graph": True}),
    "bucket_view": Usage(ddp={"gradient_as_bucket_view": True}),
    "unused in bucket view": Usage(
        Branches, {"find_unused_parameters": True, "gradient_as_bucket_view": True}
    ),
    "tied weights": Usage(Tied),
    "frozen layer": Usage(Frozen),
    "mixed dtypes": Usage(Mixed, tolerance=1e-2),
    "all 1-D": Usage(AllOneDimensional),
    "channels_last": Usage(Convolutional, shape=(4, 192)),
    "checkpointed": Usage(Checkpointed),
    "checkpointed to the end": Usage(CheckpointedLast),
    "adapter": Usage(Adapted, compress_all=True),
    "500 parameters": Usage(Many, compress_all=True),
    "float64": Usage(double),
    "clipping": Usage(clip=0.1),
    "subgroup": Usage(members=(1, 2)),
}


def run(model: DDP, usage: Usage, inputs: list[torch.Tensor]) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for i, x in enumerate(inputs):
        last = (i + 1) % usage.accumulate == 0
        with nullcontext() if last else model.no_sync():
            model(x).square().mean().backward()
        if last:
            if usage.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), usage.clip)
            optimizer.step()
            optimizer.zero_grad()
    return flat(model)


def compare(rank: int, world: int, name: str) -> dict[str, Any] | None:
    usage = USAGES[name]
    torch.manual_seed(rank)
    group = dist.new_group(list(usage.members)) if usage.members else dist.group.WORLD
    if usage.members and rank not in usage.members:
        return None
    ddp = {"process_group": group, **usage.ddp}
    inputs = batches(rank, 6, usage.shape)
    plain = run(DDP(build(usage.make), bucket_cap_mb=BUCKET_MB, **ddp), usage, inputs)
    exact = run(attach(build(usage.make), EXACT, **ddp)[0], usage, inputs)
    method = grace.topk(0.05, dense_below=0) if usage.compress_all else LOSSY
    lossy = run(attach(build(usage.make), method, **ddp)[0], usage, inputs)
    return {"error": (plain - exact).abs().max().item(), "plain": plain, "lossy": lossy}


@pytest.mark.parametrize("name", USAGES)
def test_usage(launch: Any, name: str) -> None:
    usage = USAGES[name]
    outcomes = [o for o in launch(compare, 3 if usage.members else 2, name) if o is not None]
    assert len(outcomes) == 2
    assert all(o["error"] <= usage.tolerance for o in outcomes)
    assert torch.equal(outcomes[0]["lossy"], outcomes[1]["lossy"])
    assert outcomes[0]["lossy"].isfinite().all()
    assert not torch.equal(outcomes[0]["lossy"], outcomes[0]["plain"])


def two_models(rank: int, world: int) -> torch.Tensor:
    first, _ = attach(build(seed=1), LOSSY)
    second, _ = attach(build(seed=2), "powersgd:2")
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.05)
    for x in batches(rank, 5):
        optimizer.zero_grad()
        (first(x).square().mean() + second(x).abs().mean()).backward()
        optimizer.step()
    return torch.cat([flat(first), flat(second)])


def test_two_models_in_one_backward(launch: Any) -> None:
    a, b = launch(two_models, 2)
    assert torch.equal(a, b)


def unused_branch(rank: int, world: int) -> dict[str, Any]:
    model, handle = attach(build(Branches), LOSSY, find_unused_parameters=True)
    memory = handle.session.communicator_of("main.weight").memory
    x = batches(rank, 1)[0]
    model(x).square().mean().backward()
    before = {n: s["e"].clone() for n, s in memory.state.items()}
    model.zero_grad()
    model(x).square().mean().backward()
    after = {n: s["e"].clone() for n, s in memory.state.items()}
    return {
        "owed": before["side.weight"].abs().sum().item(),
        "kept": (before["side.weight"] - after["side.weight"]).abs().max().item(),
        "moved": (before["main.weight"] - after["main.weight"]).abs().max().item(),
        "grad": model.module.side.weight.grad,
    }


def test_a_parameter_no_rank_used_is_not_committed(launch: Any) -> None:
    for o in launch(unused_branch, 2):
        assert o["owed"] > 0 and o["moved"] > 0
        assert o["kept"] < 1e-6
        assert o["grad"] is None


def scaled(rank: int, world: int) -> dict[str, Any]:
    """A loss scale that doubles, then a step with an overflow on one rank, against an unscaled run without it."""
    inputs = batches(rank, 6)
    reference, _ = attach(build(), LOSSY)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05)
    for i in (0, 1, 2, 4, 5):
        optimizer.zero_grad()
        reference(inputs[i]).square().mean().backward()
        optimizer.step()

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=2)
    model, handle = attach(build(), LOSSY, scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scales = []
    for i, x in enumerate(inputs):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if i == 3 and rank == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    state = handle.session.communicator_of("0.weight").memory.state
    return {
        "scales": scales,
        "error": (flat(model) - flat(reference)).abs().max().item(),
        "finite": all(t.isfinite().all().item() for slots in state.values() for t in slots.values()),
        "skipped": handle.stats().skipped,
        "parameters": flat(model),
    }


def test_grad_scaler_change_and_skipped_step(launch: Any) -> None:
    a, b = launch(scaled, 2)
    assert a["scales"] == b["scales"] == [2.0, 4.0, 4.0, 2.0, 2.0, 4.0]
    assert a["finite"] and b["finite"]
    assert a["skipped"] == b["skipped"] == 1
    assert a["error"] < 1e-6 and b["error"] < 1e-6
    assert torch.equal(a["parameters"], b["parameters"])


def sparse(rank: int, world: int) -> None:
    model, _ = attach(nn.Embedding(50, 8, sparse=True), LOSSY)
    with pytest.raises(UnsupportedError, match=r"'weight' is sparse.*sparse=False"):
        model(torch.tensor([1, 2])).sum().backward()

    own = nn.Embedding(50, 8, sparse=True)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    grace.attach(optimizer, LOSSY, named_parameters=own.named_parameters())
    with pytest.raises(UnsupportedError, match=r"'weight' is sparse.*sparse=False"):
        own(torch.tensor([1, 2])).sum().backward()
        optimizer.step()

    sharded = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 8))
    fully_shard(sharded)
    with pytest.raises(UnsupportedError, match=r"'0.weight' is sparse.*sparse=False"):
        grace.attach(sharded, "int8")


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x[:, :8].to(torch.complex64) @ self.weight).abs()


def complex_parameters(rank: int, world: int) -> None:
    with pytest.raises(UnsupportedError, match="complex64"):
        attach(build(Complex), LOSSY)
    sharded = build(Complex)
    fully_shard(sharded)
    with pytest.raises(UnsupportedError, match="complex64"):
        grace.attach(sharded, "int8")
    own = build(Complex)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    with pytest.raises(UnsupportedError, match="complex64"):
        grace.attach(optimizer, LOSSY, named_parameters=own.named_parameters())
        own(torch.randn(2, 20)).sum().backward()


def test_complex_parameters_get_a_clear_error(launch: Any) -> None:
    launch(complex_parameters, 2)


def test_sparse_gradients_get_a_clear_error(launch: Any) -> None:
    launch(sparse, 2)
