"""A finite spike, up to the largest number: state stays finite, and later steps are as if it had been sent or skipped."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

import grace_dl as grace
from contract.cases import CASES, Case, bits_equal, build, gradients, owed, same, slots
from grace_dl import simulated
from grace_dl.digest import sealed

SIZE, LATER = 2, 5
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def spikes(dtype: torch.dtype) -> list[float]:
    top = torch.finfo(dtype).max
    if dtype is torch.float32:
        return [1e30, 1e37, 1e38, top]
    return [top / 4, top]


def steps(case, grads, spike, ranks, where):
    """By rank: the results, the state after every step, and whether the step with the spike was skipped."""
    world = simulated(SIZE, timeout=60)
    handles = [build(case, t) for t in world]

    def work(t):
        handle, results, states = handles[t.rank], [], []
        for number, g in enumerate(grads[t.rank]):
            if number == 1 and spike is None:
                continue
            if number == 1 and t.rank in ranks:
                g = g.clone()
                g.view(-1)[where] = spike
            results.append(handle.step(g, "w"))
            states.append(slots(handle))
        return results, states, owed(handle, "w")

    return world.run(work), [handle.stats().skipped for handle in handles]


def combinations() -> list[tuple[Case, str]]:
    """All cases in float32; with the first communicator of a method and memory, other dtypes as well."""
    seen: set[tuple[str, str]] = set()
    found = []
    for case in CASES:
        first = (case.method, case.memory) not in seen
        seen.add((case.method, case.memory))
        found += [(case, dtype) for dtype in (DTYPES if first else ["float32"])]
    return found


@pytest.mark.parametrize("case, dtype", combinations(), ids=str)
def test_a_finite_spike(case, dtype):
    kind = DTYPES[dtype]
    grads = gradients(SIZE, 2 + LATER, dtype=kind)
    clean, _ = steps(case, grads, None, (), 0)
    for number, spike in enumerate(spikes(kind)):
        for ranks in ((1,), (0, 1)):
            # One element, or all of them, in turns.
            where = slice(None) if (number + len(ranks)) % 2 else 17
            found, skipped = steps(case, grads, spike, ranks, where)
            told = f"{spike:.0e} in {where} on {ranks}"
            same([results for results, _, _ in found])
            assert skipped in ([0] * SIZE, [1] * SIZE), told
            for rank, (results, states, _) in enumerate(found):
                assert bool(results[1].isfinite().all()) != bool(skipped[0]), told
                for state in states:
                    for slot, value in state.items():
                        assert value.isfinite().all(), (told, slot)
                for result in results[2:]:
                    assert result.isfinite().all(), told
                if skipped[0]:
                    as_if_it_had_not_been(results, clean[rank][0], told)
            if not skipped[0]:
                delivered(case, grads, spike, ranks, where, found, told)


def as_if_it_had_not_been(results, plain, told):
    assert bits_equal(results[0], plain[0]), told
    for later, other in zip(results[2:], plain[1:], strict=True):
        off = (later - other).abs() > 1e-4 * other.abs().max()
        # Undoing a step rounds on ranks without the spike: single elements may fall on the other side of a threshold.
        assert off.float().mean() <= 0.02, f"{told}: {int(off.sum())} elements differ"


def delivered(case, grads, spike, ranks, where, found, told):
    """With error feedback: what was sent and what is still owed add up to all gradients, spike included."""
    if case.memory not in ("residual", "powersgd", "acpsgd") or case.communicator == "alltoall":
        return
    wanted = torch.zeros_like(grads[0][0], dtype=torch.float64)
    for rank, of_rank in enumerate(grads):
        for number, g in enumerate(of_rank):
            g = g.double()
            if number == 1 and rank in ranks:
                g.view(-1)[where] = spike
            wanted += g / SIZE
    sent = sum(result.double() for result in found[0][0])
    left = sum(rest.double().view_as(wanted) for _, _, rest in found) / SIZE
    limit = max(4 * torch.finfo(grads[0][0].dtype).eps, 1e-4) * spike
    assert ((sent + left) - wanted).abs().max() <= limit, told


@pytest.mark.parametrize(
    "case",
    [
        Case("topk", "residual", "allgather"),
        Case("dgc", "dgc", "allgather"),
        Case("randomk", "residual", "allreduce"),
        Case("acpsgd", "acpsgd", "allreduce"),
        Case("int8", "residual", "alltoall"),
    ],
    ids=str,
)
def test_spikes_in_a_row_do_not_add_up_to_infinity(case):
    """Each is finite; their sum in residual or momentum would not be."""
    (grads,) = gradients(1, 1)
    world = simulated(SIZE, timeout=60)
    handles = [build(case, t) for t in world]

    def work(t):
        for turn in range(20):
            spike = grads[0].clone()
            spike[turn % 3] = 6e37
            handles[t.rank].step(spike, "w")
        return [handles[t.rank].step(grads[0], "w") for _ in range(3)], slots(handles[t.rank])

    for results, state in world.run(work):
        assert all(result.isfinite().all() for result in results)
        assert all(value.isfinite().all() for value in state.values())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rank_with_a_large_gradient_rolls_back_exactly(case):
    """Another rank's NaN must not leave the rounding errors of a large gradient in the residual."""
    grads = gradients(SIZE, 2)
    world = simulated(SIZE, timeout=60)
    handles = [build(case, t) for t in world]

    def work(t):
        handle = handles[t.rank]
        handle.step(grads[t.rank][0], "w")
        before = slots(handle)
        bad = grads[t.rank][1] * 1e20
        if t.rank == 1:
            bad[0, 0] = math.nan
        assert not handle.step(bad, "w").isfinite().all()
        return before, slots(handle)

    for before, after in world.run(work):
        assert all(bits_equal(before[slot], after[slot]) for slot in before)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_spike_in_the_first_step(case):
    """No state exists yet; a step that is skipped leaves none behind that cannot be read."""
    handle = build(case)
    (x,) = gradients(1, 1)[0]
    spike = x.clone()
    spike[0] = torch.finfo(x.dtype).max
    handle.step(spike, "w")
    owed(handle, "w")
    assert all(handle.step(x, "w").isfinite().all() for _ in range(2))
    assert all(value.isfinite().all() for value in slots(handle).values())


@pytest.mark.parametrize("method", ["topk:0.1", "efsignsgd", "dgc", "acpsgd", "powersgd"])
def test_state_that_is_infinite_is_dropped_with_a_warning(method):
    """As in a checkpoint of a version that let a spike into the residual."""
    handle = grace.manual(method)
    x = torch.randn(64, 72)
    handle.step(x, "w")
    saved = handle.state_dict()
    for memories in saved["parts"].values():
        for memory in memories.values():
            for of_name in memory.values():
                for slot in ("e", "v"):
                    if slot in of_name:
                        of_name[slot].view(-1)[3] = math.inf
    handle.load_state_dict(sealed(saved))
    with pytest.warns(RuntimeWarning, match="dropped"):
        assert handle.step(x, "w").isfinite().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(handle.step(x, "w").isfinite().all() for _ in range(3))
    assert all(value.isfinite().all() for value in slots(handle).values())
