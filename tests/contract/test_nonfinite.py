"""Point 6: a NaN or Inf on one rank gives every rank a non-finite result, and memories as if nothing had happened."""

from __future__ import annotations

import math

import pytest
import torch

from contract.cases import CASES, Case, bits_equal, build, gradients, owed, same, slots
from grace_dl import simulated
from values import not_none

BAD = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def steps(case, size, grads, bad=None, **settings):
    """Results and states after each step; `bad` is (step, rank, value), an extra step that must be as if it were not."""
    world = simulated(size, timeout=20)
    handles = [build(case, t, **settings) for t in world]

    def work(t):
        handle, results, states, broken = handles[t.rank], [], [], None
        for number, g in enumerate(grads[t.rank]):
            if bad is not None and number == bad[0]:
                extra = g.clone() * 3
                if t.rank == bad[1]:
                    extra.view(-1)[17] = bad[2]
                broken = handle.step(extra, "layer.weight")
            results.append(handle.step(g, "layer.weight"))
            states.append(slots(handle))
        return results, states, broken

    return world.run(work), handles


@pytest.mark.parametrize("place, case", list(enumerate(CASES)), ids=lambda v: str(v))
def test_a_bad_step_leaves_no_trace(place, case):
    size = 3
    value = list(BAD)[place % 3]
    grads = gradients(size, 4)
    clean, _ = steps(case, size, grads)
    dirty, handles = steps(case, size, grads, bad=(2, 1, BAD[value]))
    same([results for results, _, _ in dirty])
    for rank in range(size):
        (plain, states, _), (results, marked, broken) = clean[rank], dirty[rank]
        assert not broken.isfinite().all(), "the result of the bad step must not be finite"
        assert broken.shape == grads[0][0].shape
        for number in (0, 1):
            assert bits_equal(plain[number], results[number])
        scale = max([1.0] + [float(v.abs().max()) for v in states[2].values()])
        for slot, after in marked[2].items():
            assert after.isfinite().all(), slot
            off = (after - states[2][slot]).abs() > 1e-4 * scale
            # Taking a step back rounds, so that single elements may fall on the other side of a threshold.
            assert off.float().mean() <= 0.01, f"{slot}: {int(off.sum())} of {off.numel()} elements differ"
        for number in (2, 3):
            off = (results[number] - plain[number]).abs() > 1e-4 * plain[number].abs().max()
            assert off.float().mean() <= 0.01, f"step {number}: {int(off.sum())} elements differ"
    assert [handle.stats().skipped for handle in handles] == [1] * size


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_bad_first_step(case):
    """No state exists yet; none that is not finite may come to be."""
    size = 2
    grads = gradients(size, 2)
    clean, _ = steps(case, size, grads)
    dirty, _ = steps(case, size, grads, bad=(0, 0, math.nan))
    for (plain, _, _), (results, states, broken) in zip(clean, dirty):
        assert not broken.isfinite().all()
        assert all(v.isfinite().all() for v in states[0].values())
        for a, b in zip(plain, results):
            off = (a - b).abs() > 1e-4 * a.abs().max()
            assert off.float().mean() <= 0.01


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes(dtype):
    for case in (
        Case("topk", "residual", "allgather"),
        Case("none", "none", "allreduce"),
        Case("int8", "none", "alltoall"),
    ):
        dirty, _ = steps(case, 2, gradients(2, 2, dtype=dtype), bad=(1, 1, math.inf))
        for results, _, broken in dirty:
            assert broken.dtype == dtype and not broken.isfinite().all()
            assert all(r.isfinite().all() for r in results)


def test_many_bad_steps_in_a_row():
    """A loss scaler may need several halvings; rounding must not pile up."""
    case, size = Case("topk", "residual", "allgather"), 2
    grads = gradients(size, 2)
    world = simulated(size, timeout=20)
    handles = [build(case, t) for t in world]

    def work(t):
        handle = handles[t.rank]
        handle.step(grads[t.rank][0], "w")
        before = not_none(owed(handle, "w")).clone()
        for _ in range(20):
            bad = grads[t.rank][1] * 1000
            if t.rank == 0:
                bad[0, 0] = math.inf
            handle.step(bad, "w")
        return before, owed(handle, "w")

    for before, after in world.run(work):
        assert (before - after).abs().max() < 1e-2


def test_only_the_tensor_with_the_bad_value_is_marked():
    case, size = Case("topk", "residual", "allgather"), 2
    world = simulated(size, timeout=20)
    handles = [build(case, t) for t in world]
    grads = gradients(size, 1)

    def work(t):
        bad = grads[t.rank][0].clone()
        if t.rank == 1:
            bad[0, 0] = math.nan
        return handles[t.rank].step(bad, "a"), handles[t.rank].step(grads[t.rank][0], "b")

    for a, b in world.run(work):
        assert not a.isfinite().any()
        assert b.isfinite().all()
