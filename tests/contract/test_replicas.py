"""Point 2: replicas stay identical in training."""

from __future__ import annotations

import pytest
import torch

from contract.cases import BATCHES, CASES, bits_equal, build, cases_of, gradients
from contract.training import NETWORK, train
from grace_dl import simulated


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
