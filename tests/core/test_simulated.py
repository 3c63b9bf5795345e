"""The simulated world itself: it must behave as a real one does, also when ranks go wrong."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from contract.cases import Case, build, gradients
from grace_dl import simulated
from grace_dl.errors import ConfigError, GraceError, LayoutError, PeerError


def test_collectives():
    world = simulated(3, timeout=5)

    def work(t):
        x = torch.tensor([1.0 + t.rank])
        t.allreduce(x).wait()
        gathered = torch.empty(6)
        t.allgather(gathered, torch.full((2,), float(t.rank))).wait()
        received = torch.empty(3 * (t.rank + 1))
        sent = torch.cat([torch.full((r + 1,), 10.0 * t.rank + r) for r in range(3)])
        t.alltoall(received, sent, [t.rank + 1] * 3, [1, 2, 3]).wait()
        y = torch.tensor([float(t.rank)])
        t.broadcast(y, 2).wait()
        t.barrier().wait()
        return x, gathered, received, y

    for rank, (x, gathered, received, y) in enumerate(world.run(work)):
        assert x.item() == 6
        assert gathered.tolist() == [0, 0, 1, 1, 2, 2]
        assert received.tolist() == [10.0 * s + rank for s in range(3) for _ in range(rank + 1)]
        assert y.item() == 2


def test_collectives_are_asynchronous():
    world = simulated(2, timeout=5)
    first, second = world[0], world[1]
    x = torch.ones(1)
    handle = first.allreduce(x)
    assert not handle.done()
    other = second.allreduce(torch.ones(1))
    assert handle.done() and other.done()
    handle.wait()
    assert x.item() == 2


def test_channels_are_independent():
    world = simulated(2, timeout=5)

    def work(t):
        a, b = torch.tensor([1.0]), torch.tensor([10.0])
        order = [(a, 0), (b, 1)] if t.rank == 0 else [(b, 1), (a, 0)]
        handles = [t.allreduce(x, channel) for x, channel in order]
        for handle in handles:
            handle.wait()
        return a.item(), b.item()

    assert world.run(work) == [(2, 20), (2, 20)]


@pytest.mark.parametrize("kind", ["size", "dtype", "verb", "root"])
def test_ranks_that_disagree_all_get_an_error(kind):
    world = simulated(2, timeout=5)
    errors = []

    def work(t):
        odd = t.rank == 1
        try:
            if kind == "size":
                t.allreduce(torch.ones(3 if odd else 2)).wait()
            elif kind == "dtype":
                t.allreduce(torch.ones(2, dtype=torch.float64 if odd else torch.float32)).wait()
            elif kind == "verb":
                (t.barrier() if odd else t.allreduce(torch.ones(2))).wait()
            else:
                t.broadcast(torch.ones(2), t.rank).wait()
        except GraceError as error:
            errors.append(error)

    world.run(work)
    assert len(errors) == 2
    assert all(isinstance(error, LayoutError) for error in errors)


def test_splits_that_do_not_fit():
    world = simulated(2, timeout=2)
    errors = []

    def work(t):
        try:
            counts = [1, 1] if t.rank == 0 else [2, 2]
            t.alltoall(torch.empty(sum(counts)), torch.ones(2), counts, [1, 1]).wait()
        except Exception as error:
            errors.append(error)
            raise

    with pytest.raises(GraceError):
        world.run(work)
    assert len(errors) == 2 and all(isinstance(error, GraceError) for error in errors)


def test_the_failure_of_one_rank_reaches_the_others_at_once():
    world = simulated(3, timeout=30)
    seen = []

    def work(t):
        if t.rank == 2:
            raise ValueError("this rank is broken")
        try:
            t.barrier().wait()
        except PeerError as error:
            seen.append(str(error))
            raise

    start = time.monotonic()
    with pytest.raises(ValueError, match="this rank is broken"):
        world.run(work)
    assert time.monotonic() - start < 5
    assert len(seen) == 2 and all("this rank is broken" in text for text in seen)


def test_a_world_can_be_used_again_after_a_failure():
    world = simulated(2, timeout=5)

    def fail(t):
        if t.rank == 0:
            raise RuntimeError("once")
        t.barrier().wait()

    with pytest.raises(RuntimeError, match="once"):
        world.run(fail)
    x = world.run(lambda t: t.allreduce(torch.ones(1)).wait())
    assert x == [None, None]


def test_a_missing_rank_times_out():
    world = simulated(2, timeout=0.2)
    start = time.monotonic()
    with pytest.raises(PeerError, match=r"0\.2 s"):
        world.run(lambda t: t.barrier().wait() if t.rank == 0 else None)
    assert time.monotonic() - start < 3


def test_more_steps_on_one_rank_are_an_error_and_no_hang():
    world = simulated(2, timeout=0.5)
    handles = [build(Case("topk", "residual", "allgather"), t) for t in world]
    grads = gradients(2, 1)

    def work(t):
        for _ in range(2 - t.rank):
            handles[t.rank].step(grads[t.rank][0], "w")

    with pytest.raises(PeerError):
        world.run(work)


@pytest.mark.parametrize(
    "left, right",
    [
        (Case("topk", "residual", "allgather"), Case("qsgd", "none", "allgather")),
        (Case("topk", "residual", "allgather"), Case("topk", "none", "allgather")),
        (Case("int8", "none", "allgather"), Case("int8", "none", "broadcast")),
    ],
    ids=str,
)
def test_ranks_with_different_methods(left, right):
    world = simulated(2, timeout=5)
    handles = [build(left, world[0]), build(right, world[1])]
    grads = gradients(2, 1)
    errors = []

    def work(t):
        with pytest.raises(LayoutError, match="disagree") as caught:
            handles[t.rank].step(grads[0][0], "w")
        errors.append(caught.value)

    world.run(work)
    assert len(errors) == 2


@pytest.mark.parametrize("difference", ["settings", "shape", "name", "dtype", "seed"])
def test_ranks_with_different_layouts(difference):
    world = simulated(2, timeout=5)
    case = Case("topk", "residual", "allgather")
    ratios = (0.1, 0.2) if difference == "settings" else (0.1, 0.1)
    seeds = (0, 1) if difference == "seed" else (0, 0)
    handles = [build(case, t, ratio=ratios[t.rank], seed=seeds[t.rank]) for t in world]

    def work(t):
        odd = t.rank == 1
        x = torch.ones(20 if difference == "shape" and odd else 10)
        x = x.double() if difference == "dtype" and odd else x
        with pytest.raises(LayoutError, match="disagree"):
            handles[t.rank].step(x, "other" if difference == "name" and odd else "w")

    world.run(work)


@pytest.mark.parametrize("size", [0, -1])
def test_empty_worlds_are_refused(size):
    with pytest.raises(ConfigError):
        simulated(size)


def test_a_world_is_a_sequence_of_transports():
    world = simulated(3)
    assert len(world) == 3
    assert [t.rank for t in world] == [0, 1, 2]
    assert all(t.size == 3 for t in world)
    assert world[1].rank == 1


def test_results_come_by_rank_and_threads_end():
    before = threading.active_count()
    assert simulated(8).run(lambda t: t.rank * t.rank) == [r * r for r in range(8)]
    assert threading.active_count() == before
