"""The order of collectives is the same on all ranks, whenever they learn that a collective is done."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import grace_dl as grace
from contract.wire import Wrapped
from grace_dl import simulated
from grace_dl.pipeline.bucket import Bucket, Segment
from grace_dl.transport.base import Handle, Transport

SEVERAL_ROUNDS = ["int8", "powersgd:2", "acpsgd:2", "threshold", "int8:memory=residual"]
MIXED = "by_parameter(p1=powersgd:2; p2=threshold; default=int8)"


class Sometimes(Handle):
    """A collective that is found done late, at random."""

    def __init__(self, inner: Handle, chance: random.Random) -> None:
        self._inner = inner
        self._chance = chance

    def wait(self) -> None:
        self._inner.wait()

    def done(self) -> bool:
        return self._inner.done() and self._chance.random() < 0.5


class Recorded(Wrapped):
    """Records the collectives of a rank."""

    def __init__(self, inner: Transport, one_order: bool, seed: int) -> None:
        super().__init__(inner)
        self.one_order = one_order
        self.issued: list[tuple[int, str, int]] = []
        self._chance = random.Random(f"{seed}/{inner.rank}")

    def _record(self, channel: int, verb: str, tensor: torch.Tensor, handle: Handle) -> Handle:
        self.issued.append((channel, verb, tensor.numel()))
        return Sometimes(handle, self._chance)

    def allreduce(self, tensor: torch.Tensor, channel: int = 0) -> Handle:
        return self._record(channel, "allreduce", tensor, super().allreduce(tensor, channel))

    def allgather(self, out: torch.Tensor, tensor: torch.Tensor, channel: int = 0) -> Handle:
        return self._record(channel, "allgather", tensor, super().allgather(out, tensor, channel))

    def alltoall(self, out: torch.Tensor, tensor: torch.Tensor, *rest: Any) -> Handle:
        return self._record(rest[2], "alltoall", tensor, super().alltoall(out, tensor, *rest))


def issued(text: str, one_order: bool, seed: int) -> tuple[list[Any], list[torch.Tensor]]:
    """What each of three ranks issued in three steps of four buckets, and the gradients it ended with."""
    world = simulated(3, timeout=20)
    transports = [Recorded(t, one_order, seed) for t in world]
    sessions = [grace.manual(text, transport=t).session for t in transports]

    def work(t: Transport) -> torch.Tensor:
        own = torch.Generator().manual_seed(t.rank)
        for _ in range(3):
            driver = sessions[t.rank].driver()
            flats = [torch.randn(64 * (32 + number), generator=own) for number in range(4)]
            for number, flat in enumerate(flats):
                segment = Segment(f"p{number}", flat, flat.view(64, -1))
                driver.launch(Bucket(("test", number), [segment], flat))
            driver.finish()
        return torch.cat(flats)

    world_results = world.run(work)
    return [t.issued for t in transports], world_results


@pytest.mark.parametrize("text", [*SEVERAL_ROUNDS, MIXED])
@pytest.mark.parametrize("seed", range(3))
def test_one_order_for_all_collectives_where_the_engine_needs_it(text: str, seed: int) -> None:
    orders, results = issued(text, True, seed)
    assert orders[0] == orders[1] == orders[2]
    assert {channel for channel, _, _ in orders[0]} == {0}
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("text", [*SEVERAL_ROUNDS, MIXED])
@pytest.mark.parametrize("seed", range(3))
def test_one_order_on_each_channel_otherwise(text: str, seed: int) -> None:
    orders, results = issued(text, False, seed)
    for channel in range(4):
        of_channel = [[one for one in order if one[0] == channel] for order in orders]
        assert of_channel[0] == of_channel[1] == of_channel[2]
    assert torch.equal(results[0], issued(text, True, seed)[1][0])
