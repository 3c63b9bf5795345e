"""Point 2: every rank decodes the same bits, and replicas stay identical."""

from __future__ import annotations

import time

import pytest
import torch

from contract.cases import BATCHES, CASES, NAMES, Case, bits_equal, build, cases_of, gradients, run, same
from contract.training import NETWORK, train
from contract.wire import Wrapped
from grace_dl import simulated


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_ranks_get_the_same_bits(case, size):
    results, _ = run(size, case, gradients(size, 3))
    same(results)
    assert all(r.isfinite().all() for r in results[0])


class Late(Wrapped):
    """A rank that comes late to every collective, so that others wait."""

    def allgather(self, *arguments):
        time.sleep(0.01)
        return super().allgather(*arguments)

    def allreduce(self, *arguments):
        time.sleep(0.01)
        return super().allreduce(*arguments)

    def alltoall(self, *arguments):
        time.sleep(0.01)
        return super().alltoall(*arguments)

    def broadcast(self, *arguments):
        time.sleep(0.01)
        return super().broadcast(*arguments)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_arrival_changes_nothing(name):
    for case in cases_of(name):
        grads = gradients(3, 2)
        plain, _ = run(3, case, grads)
        late, _ = run(3, case, grads, wrap=lambda t: Late(t) if t.rank == 1 else t)
        for a, b in zip(plain[0], late[0]):
            assert bits_equal(a, b), case


def test_the_seed_is_all_that_randomness_depends_on():
    grads = gradients(2, 1)
    case = Case("qsgd", "none", "allgather")
    a, _ = run(2, case, grads, seed=1)
    b, _ = run(2, case, grads, seed=2)
    assert not torch.equal(a[0][0], b[0][0])


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("names", BATCHES, ids=" ".join)
def test_replicas_are_identical_after_fifty_steps(launch, names, size):
    """Through DDP on real processes, whose own generators are seeded differently."""
    ways = [case for name in names for case in cases_of(name) if case.memory == cases_of(name)[0].memory]
    answers = launch(train, size, ways, 50, timeout=240)
    for place, case in enumerate(ways):
        parameters = [answer[place]["parameters"] for answer in answers]
        losses = [answer[place]["losses"] for answer in answers]
        assert parameters[0].isfinite().all(), case
        for rank, other in enumerate(parameters[1:], 1):
            assert bits_equal(parameters[0], other), f"{case}: rank {rank} differs from rank 0"
        assert answers[0][place]["compressed"], f"{case} sent everything dense: {NETWORK}"
        assert sum(loss[-1] for loss in losses) < 0.9 * sum(loss[0] for loss in losses), case


@pytest.mark.parametrize("case", [c for c in CASES if c.memory != cases_of(c.method)[0].memory], ids=str)
def test_replicas_are_identical_with_other_memories(case):
    """By hand, without DDP."""
    size, steps = 3, 20
    world = simulated(size, timeout=20)
    handles = [build(case, t) for t in world]
    target = gradients(1, 1, (32, 48), seed=5)[0][0]
    noise = gradients(size, steps, (32, 48), seed=6)

    def work(t):
        weights = torch.zeros_like(target)
        for pull in noise[t.rank]:
            grad = weights - target + 0.1 * pull
            weights -= 0.02 * handles[t.rank].step(grad, "weights")
        return weights

    weights = world.run(work)
    assert all(bits_equal(weights[0], other) for other in weights[1:])
    assert weights[0].isfinite().all()
