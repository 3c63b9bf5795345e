"""Point 2: every rank decodes the same bits."""

from __future__ import annotations

import time

import pytest
import torch

from contract.cases import CASES, NAMES, Case, bits_equal, cases_of, gradients, run, same
from contract.wire import Wrapped


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
