"""The handle that `attach` returns: switching, statistics, saving, errors."""

from __future__ import annotations

import gc
import os
import time
import weakref
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from values import not_none
import grace_dl as grace
from ddp_models import BUCKET_MB, EXACT, LOSSY, attach, batches, build, flat, train
from grace_dl import Compressor, Memory


def switching(rank: int, world: int) -> dict[str, Any]:
    """Top-k, then another method, then none: what was owed arrives."""
    model, handle = attach(build(), grace.topk(0.05, dense_below=0))
    x = batches(rank, 1)[0]
    names = [n for n, _ in model.module.named_parameters()]
    given = {n: torch.zeros_like(p) for n, p in model.module.named_parameters()}
    got = {n: torch.zeros_like(p) for n, p in model.module.named_parameters()}

    def step() -> None:
        reference = build()
        reference(x).square().mean().backward()
        model.zero_grad()
        model(x).square().mean().backward()
        for (n, p), q in zip(model.module.named_parameters(), reference.parameters()):
            given[n] += not_none(q.grad)
            got[n] += not_none(p.grad)

    step()
    step()
    handle.switch(grace.int8(memory="residual", communicator="allgather"))
    step()
    handle.switch("int8:memory=residual")
    step()
    handle.detach()
    step()
    return {
        "given": torch.cat([given[n].reshape(-1) for n in names]),
        "got": torch.cat([got[n].reshape(-1) for n in names]),
        "method": str(handle.method),
    }


def test_switching_method_loses_nothing(launch: Any) -> None:
    outcomes = launch(switching, 2)
    average = (outcomes[0]["given"] + outcomes[1]["given"]) / 2
    for outcome in outcomes:
        assert outcome["method"] == "none"
        assert torch.allclose(outcome["got"], average, atol=1e-5)
    assert torch.equal(outcomes[0]["got"], outcomes[1]["got"])


def low_rank(rank: int, world: int, method: str) -> dict[str, Any]:
    torch.manual_seed(rank)
    model, handle = attach(build(), f"{method}:2")
    train(model, batches(rank, 200), lr=0.01)
    return {"parameters": flat(model), "stats": handle.stats()}


@pytest.mark.parametrize("method, rounds", [("powersgd", 2), ("acpsgd", 1)])
@pytest.mark.parametrize("world", [2, 3])
def test_low_rank_runs_200_steps_with_several_buckets(
    launch: Any, method: str, rounds: int, world: int
) -> None:
    outcomes = launch(low_rank, world, method)
    for outcome in outcomes:
        assert torch.equal(outcome["parameters"], outcomes[0]["parameters"])
        assert outcome["stats"].steps == 200
        assert outcome["stats"].collectives > 200


def counted(rank: int, world: int, text: str) -> Any:
    model, handle = attach(build(), text)
    train(model, batches(rank, 2))
    before = handle.stats()
    train(model, batches(rank, 1))
    return handle.stats().collectives - before.collectives


def buckets(rank: int, world: int) -> int:
    return counted(rank, world, "none")


@pytest.mark.parametrize(
    "text, rounds",
    [
        ("qsgd", 1),
        ("randomk:0.1", 1),
        ("threshold", 2),
        ("int8:communicator=alltoall", 2),
        ("acpsgd", 1),
    ],
)
def test_collectives_per_bucket(launch: Any, text: str, rounds: int) -> None:
    number = launch(buckets, 2)[0]
    assert number > 1
    assert launch(counted, 2, text) == [rounds * number] * 2


def statistics(rank: int, world: int) -> Any:
    model, handle = attach(build(), "topk:0.01")
    train(model, batches(rank, 3))
    return handle.stats()


def test_statistics(launch: Any) -> None:
    stats = launch(statistics, 2)[0]
    dense = sum(p.numel() * 4 for p in build().parameters())
    assert stats.steps == 3 and stats.skipped == 0
    assert stats.dense_bytes == 3 * dense
    assert 0 < stats.payload_bytes < dense
    assert stats.leaving_bytes == stats.payload_bytes
    assert all(stats.seconds[part] > 0 for part in ("compress", "wait", "decode"))


def resumed(rank: int, world: int, text: str) -> bool:
    """Six steps at once, and three, saved, loaded elsewhere, and three more: the same bits."""
    inputs = batches(rank, 6)
    whole, _ = attach(build(), text)
    train(whole, inputs)
    first, handle = attach(build(), text)
    train(first, inputs[:3])
    saved = handle.state_dict()
    second, handle = attach(build(), text)
    second.module.load_state_dict(first.module.state_dict())
    handle.load_state_dict(saved)
    train(second, inputs[3:])
    return torch.equal(flat(whole), flat(second))


@pytest.mark.parametrize("text", ["topk", "qsgd", "signum", "dgc", "powersgd", "acpsgd", "int8"])
def test_a_resumed_run_repeats(launch: Any, text: str) -> None:
    assert launch(resumed, 2, text) == [True, True]


def distance(rank: int, world: int, text: str, target: str) -> float:
    """How far six steps at once are from three, saved, loaded elsewhere, and three more, relative to the largest weight."""

    def start() -> tuple[torch.nn.Module, Any, Any]:
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        if target != "optimizer":
            net = DDP(model, bucket_cap_mb=BUCKET_MB, find_unused_parameters=target == "fixed buckets")
            return net, optimizer, grace.attach(net, text)
        return model, optimizer, grace.attach(optimizer, text, named_parameters=model.named_parameters())

    def steps(net: Any, optimizer: Any, inputs: list[torch.Tensor]) -> None:
        for x in inputs:
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

    inputs = batches(rank, 6)
    whole, optimizer, _ = start()
    steps(whole, optimizer, inputs)
    first, optimizer, handle = start()
    steps(first, optimizer, inputs[:3])
    weights, saved = first.state_dict(), handle.state_dict()
    second, optimizer, handle = start()
    second.load_state_dict(weights)
    handle.load_state_dict(saved)
    steps(second, optimizer, inputs[3:])
    return float((flat(whole) - flat(second)).abs().max() / flat(whole).abs().max())


GATHERED = ["topk:0.1,communicator=allgather", "int8:communicator=allgather"]


@pytest.mark.parametrize("text", [*GATHERED, "none", "powersgd", "acpsgd"])
@pytest.mark.parametrize("target", ["ddp", "fixed buckets", "optimizer"])
def test_what_is_exact_after_resuming_on_three_ranks(launch: Any, text: str, target: str) -> None:
    """As docs/checkpoints.md says: all but all-reduce through DDP, whose buckets are in another order at the first step."""
    found = launch(distance, 3, text, target, timeout=60)
    exact = target != "ddp" or text in GATHERED
    assert max(found) <= (0.0 if exact else 1e-4), found


class Halves(Compressor):
    """A user's own: sends half precision, and nothing else is defined."""

    def compress(self, tensor: torch.Tensor, name: str) -> Any:
        return [tensor.half()], tensor.shape

    def decompress(self, payload: Any, ctx: Any) -> torch.Tensor:
        return payload[0].float().view(ctx)


class Momentum(Memory):
    def compensate(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        return tensor + 0.5 * self.slot(name, "m", tensor).view_as(tensor)

    def update(self, tensor: torch.Tensor, name: str, compressor: Any, payload: Any, ctx: Any) -> None:
        self.slot(name, "m", tensor).copy_(tensor)


def own(rank: int, world: int, memory: bool) -> torch.Tensor:
    model = DDP(build(), bucket_cap_mb=BUCKET_MB)
    grace.attach(model, grace.custom(Halves(), Momentum() if memory else None))
    return flat(train(model, batches(rank, 4)))


@pytest.mark.parametrize("memory", [False, True])
def test_a_users_own_compressor_and_memory(launch: Any, memory: bool) -> None:
    a, b = launch(own, 2, memory)
    assert torch.equal(a, b)


class Breaks(Halves):
    def compress(self, tensor: torch.Tensor, name: str) -> Any:
        if torch.distributed.get_rank() == 1:
            raise RuntimeError("no disk space for the log")
        return super().compress(tensor, name)


def broken(rank: int, world: int) -> str:
    model = DDP(build(), bucket_cap_mb=BUCKET_MB)
    grace.attach(model, grace.custom(Breaks()))
    try:
        train(model, batches(rank, 1))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_an_error_on_one_rank_reaches_all(launch: Any) -> None:
    first, second = launch(broken, 2)
    assert second == "RuntimeError: no disk space for the log"
    assert first.startswith("PeerError: rank 1")


def unequal(rank: int, world: int, kind: str) -> str:
    make = {"width": 64 + rank} if kind == "layout" else {"width": 64}
    from ddp_models import MLP

    differing = {
        "method": grace.topk(0.05 + 0.01 * rank),
        "schedule": grace.schedule((0, grace.none()), (5 + rank, LOSSY)),
        "rule": grace.by_parameter({f"{rank}.*": grace.int8()}, default=LOSSY),
    }
    method = differing.get(kind, LOSSY)
    if kind == "layout":
        # DDP itself checks shapes when it is built, so ranks that disagree are brought together by hand.
        tensor = torch.zeros(make["width"])
        try:
            grace.manual(method).step(tensor, "w")
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "no error"
    model = DDP(build(lambda: MLP(**make)), bucket_cap_mb=BUCKET_MB)
    try:
        grace.attach(model, method)
        train(model, batches(rank, 1))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@pytest.mark.parametrize("kind", ["layout", "method", "schedule", "rule"])
def test_ranks_that_disagree_are_told(launch: Any, kind: str) -> None:
    for message in launch(unequal, 3, kind):
        assert message.startswith("LayoutError") and "disagree" in message


def test_attach_takes_ddp_models_and_optimizers_only() -> None:
    with pytest.raises(ValueError, match="Linear; wrap the model"):
        grace.attach(torch.nn.Linear(2, 2), EXACT)  # type: ignore[arg-type]


def twice(rank: int, world: int) -> str:
    model, _ = attach(build(), EXACT)
    with pytest.raises(ValueError, match="switch"):
        grace.attach(model, EXACT)
    return "refused"


def test_a_model_is_attached_once(launch: Any) -> None:
    assert launch(twice, 2) == ["refused"] * 2


def absent(rank: int, world: int, how: str) -> str:
    handle = grace.manual(LOSSY)
    if how == "never came" and rank == 1:
        time.sleep(6)
        return "absent"
    handle.step(torch.ones(3000), "w")
    if how == "died" and rank == 1:
        os._exit(3)
    handle.step(torch.ones(3000), "w")
    return "no error"


def test_a_rank_that_dies_is_reported_to_the_others(launch: Any) -> None:
    outcomes = launch.outcomes(absent, 2, "died", timeout=30, group_timeout=5)
    assert outcomes[1].error is not None
    assert outcomes[0].error is not None and outcomes[0].error.startswith("PeerError"), outcomes[0]
    assert outcomes[0].seconds < 15


def test_a_rank_that_never_comes_is_reported_within_the_timeout(launch: Any) -> None:
    outcomes = launch.outcomes(absent, 2, "never came", timeout=30, group_timeout=3)
    assert outcomes[0].error is not None
    assert outcomes[0].error.startswith("PeerError") and "did not come" in outcomes[0].error
    assert outcomes[0].seconds < 15


def released(rank: int, world: int) -> bool:
    model, handle = attach(build(), LOSSY)
    train(model, batches(rank, 2))
    alive = weakref.ref(model.module)
    del model, handle
    gc.collect()
    return alive() is None


def test_a_model_that_is_dropped_is_released(launch: Any) -> None:
    assert launch(released, 2) == [True, True]
