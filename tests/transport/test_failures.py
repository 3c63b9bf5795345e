"""Failures between ranks: each is reported once, on every rank, and what comes after it is not mixed up."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import grace_dl as grace
from contract.wire import Wrapped
from grace_dl.errors import PayloadError, PeerError
from grace_dl.pipeline.bucket import single
from grace_dl.transport.base import Handle
from grace_dl.transport.local import LocalTransport
from grace_dl.transport.torch_dist import TorchTransport, carried

# A false length ---------------------------------------------------------------------------------------------


class Liar(Wrapped):
    """Announces another length than it sends, in one step."""

    change: int | None = None

    def allgather(self, out: torch.Tensor, tensor: torch.Tensor, channel: int = 0) -> Handle:
        if self.change is not None and tensor.dtype == torch.int64 and tensor.numel() == 1:
            tensor += self.change
        return super().allgather(out, tensor, channel)


def lied(rank: int, world: int, changes: list[int]) -> None:
    transport = Liar(TorchTransport())
    handle = grace.manual("threshold:0.5,dense_below=0", transport=transport)
    torch.manual_seed(rank)
    for change in changes:
        transport.change = change if rank == 1 else None
        with pytest.raises(PayloadError):
            handle.step(torch.randn(500), "w")
        transport.change = None
        result = handle.step(torch.randn(500), "w")
        everyone = [torch.empty_like(result) for _ in range(world)]
        dist.all_gather(everyone, result)
        assert all(torch.equal(result, other) for other in everyone)


def test_a_false_length_is_refused_on_every_rank(launch: Any) -> None:
    launch(lied, 3, [-8, -64, 3, 2**40, -(2**40), -(10**6)], timeout=40, group_timeout=20)


# Timeouts do not add up -------------------------------------------------------------------------------------


class Sleeps(torch.autograd.Function):
    seconds = 0.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        time.sleep(Sleeps.seconds)
        return grad


def stuck(rank: int, world: int) -> float:
    """Rank 1 is stuck in backward: its first bucket has gone out, and the others come to compare the second."""
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    model = nn.ModuleList([first, second])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = grace.attach(optimizer, "powersgd:2", named_parameters=model.named_parameters())
    handle.reducer.options.bucket_bytes = 1  # type: ignore[attr-defined]
    handle.reducer.refill()  # type: ignore[attr-defined]
    dist.barrier()
    Sleeps.seconds = 11.0 if rank == 1 else 0.0
    started = time.monotonic()
    with pytest.raises((PeerError, RuntimeError)) as caught:
        second(Sleeps.apply(first(torch.randn(4, 64)))).square().mean().backward()
    seconds = time.monotonic() - started
    if rank == 0:
        assert isinstance(caught.value, PeerError) and "rank 1 did not come" in str(caught.value)
    dist.destroy_process_group()
    return seconds


def test_a_stuck_rank_is_reported_after_one_timeout(launch: Any) -> None:
    assert launch(stuck, 2, group_timeout=5)[0] < 9.5


class Lost(Wrapped):
    """Its peer is gone when the second bucket is compared; waiting for the first one would take another timeout."""

    agreed = 0

    def allgather(self, out: torch.Tensor, tensor: torch.Tensor, channel: int = 0) -> Handle:
        return Unreachable()

    def agree(self, text: str) -> None:
        self.agreed += 1
        if self.agreed == 2:
            raise PeerError("rank 1 did not come")


class Unreachable(Handle):
    def wait(self) -> None:
        raise AssertionError("waited for a peer that is known to be gone")

    def done(self) -> bool:
        return False


def test_nothing_is_waited_for_after_a_rank_was_missed() -> None:
    driver = grace.manual("topk:0.5,dense_below=0", transport=Lost(LocalTransport())).session.driver()
    first, second = (single(torch.randn(64), name) for name in ("a", "b"))
    driver.launch(first)
    with pytest.raises(PeerError, match="rank 1"):
        driver.launch(second)
    driver.abandon()


# Averaged twice ---------------------------------------------------------------------------------------------


def twice(rank: int, world: int) -> None:
    module = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    model = DistributedDataParallel(module)
    with pytest.warns(UserWarning, match=r"grace\.attach\(ddp_model, method\)"):
        grace.attach(optimizer, "none", named_parameters=module.named_parameters()).close()
    del model
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grace.attach(optimizer, "none", named_parameters=module.named_parameters())


def test_an_optimizer_of_a_ddp_model_is_warned_of(launch: Any) -> None:
    launch(twice, 2)


# Devices ----------------------------------------------------------------------------------------------------


def devices(rank: int, world: int) -> None:
    """A group that serves one device only, as NCCL does; here this is the CPU, and `meta` stands for the other."""
    group = dist.new_group(backend="cpu:gloo")
    own = torch.ones(4, 4)
    assert carried(own, group) is own
    assert carried(own.t(), group).is_contiguous()
    assert [device.type for device in group._device_types] == ["cpu"]
    with pytest.raises(NotImplementedError, match="meta"):  # it would be copied to the CPU
        carried(torch.empty(4, device="meta"), group)
    mixed = dist.new_group(backend="cpu:gloo,cuda:gloo")
    assert carried(own, mixed) is own


def test_tensors_are_sent_from_a_device_that_the_backend_serves(launch: Any) -> None:
    launch(devices, 2)
