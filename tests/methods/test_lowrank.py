"""PowerSGD and ACP-SGD: their mathematics, with the averaging over ranks done by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import grace_dl as grace
from grace_dl.compressor.lowrank import starting_factor
from grace_dl.errors import StateError, UnsupportedError
from grace_dl.key import Key
from grace_dl.memory.acpsgd import ACPSGDMemory
from grace_dl.memory.powersgd import PowerSGDMemory
from grace_dl.methods.acpsgd import ACPSGDCompressor
from grace_dl.methods.powersgd import PowerSGDCompressor

PAIRS = [(PowerSGDCompressor, PowerSGDMemory), (ACPSGDCompressor, ACPSGDMemory)]
both = pytest.mark.parametrize("method, memory", PAIRS, ids=["powersgd", "acpsgd"])


def drive(memories, compressor, grads, step, begin_only=False):
    """One step of all ranks; `grads[rank][name]`. Returns every rank's pendings, averages done in plain torch."""
    generators = [
        memory.rounds([(g, Key(n, step=step, rank=r)) for n, g in by_name.items()], compressor)
        for r, (memory, by_name) in enumerate(zip(memories, grads))
    ]
    answers: list[Any] = [None] * len(generators)
    pendings, rounds = [], 0
    while True:
        requests = []
        for generator, answer in zip(generators, answers):
            try:
                requests.append(generator.send(answer))
            except StopIteration as end:
                pendings.append(end.value)
        if not requests:
            return pendings, rounds
        assert len(requests) == len(generators)
        rounds += 1
        means = [torch.stack(parts).mean(0) for parts in zip(*requests)]
        answers = [[m.clone() for m in means] for _ in generators]


def step(memories, compressor, grads, number):
    """A committed step; returns the result of each name, which must be the same on every rank."""
    pendings, _ = drive(memories, compressor, grads, number)
    results = []
    for memory, pending in zip(memories, pendings):
        outs = {}
        for place, p in enumerate(pending):
            out = torch.full(p.ctx.shape, math.nan, dtype=p.grad.dtype)
            if place % 2:
                memory.commit(p)
                compressor.combine_(out.view(-1), [p.payload], p.ctx)
            else:
                memory.conclude(p, out.view(-1))
            outs[p.key.name] = out
        results.append(outs)
    for other in results[1:]:
        for name, value in results[0].items():
            assert torch.equal(value.nan_to_num(), other[name].nan_to_num())
    return results[0]


def gradients(ranks, shapes, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            for name, shape in shapes.items()
        }
        for _ in range(ranks)
    ]


SHAPES = {"conv": (16, 8, 3, 3), "a": (32, 48), "b": (32, 48), "tall": (200, 20)}


@both
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.float64, 1e-12)])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_nothing_is_lost(method, memory, ranks, dtype, tolerance):
    compressor, memories = method(rank=2), [memory() for _ in range(ranks)]
    given = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    got = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    for number in range(7):
        grads = gradients(ranks, SHAPES, number, dtype)
        result = step(memories, compressor, grads, number)
        for name in SHAPES:
            given[name] += sum(g[name].double() for g in grads) / ranks
            got[name] += result[name].double()
    for name in SHAPES:
        owed = sum(m.residual(name).double() for m in memories) / ranks
        torch.testing.assert_close(got[name] + owed, given[name], rtol=0, atol=tolerance)
        assert all(m.residual(name).dtype == dtype for m in memories)


def test_powersgd_sends_what_the_paper_sends():
    """Vogels 2019, algorithm 2, written down plainly: there every rank takes the averaged result off its residual."""
    compressor, memories = PowerSGDCompressor(rank=2), [PowerSGDMemory() for _ in range(2)]
    residuals, q = [torch.zeros(24, 20, dtype=torch.float64) for _ in range(2)], None
    for number in range(6):
        grads = gradients(2, {"w": (24, 20)}, number, torch.float64)
        if q is None:
            q = starting_factor(Key("w"), "q", 2, 20, residuals[0]).t()
        matrices = [e + g["w"] for e, g in zip(residuals, grads)]
        p = torch.linalg.qr(sum(m @ q for m in matrices) / 2).Q
        q = sum(m.t() @ p for m in matrices) / 2
        residuals = [m - p @ q.t() for m in matrices]
        result = step(memories, compressor, grads, number)["w"]
        torch.testing.assert_close(result, p @ q.t(), rtol=0, atol=1e-10)


@both
def test_residuals_stay_small_where_ranks_disagree(method, memory):
    compressor, memories = method(rank=2), [memory() for _ in range(2)]
    for number in range(300):
        step(memories, compressor, gradients(2, {"w": (24, 20)}, number), number)
    assert all(m.residual("w").norm() < 6 * math.sqrt(24 * 20) for m in memories)


@both
def test_result_is_the_average_in_the_limit(method, memory):
    """A gradient that repeats is sent whole in the end: its sum of results approaches its sum."""
    compressor, memories = method(rank=2), [memory() for _ in range(2)]
    grads = gradients(2, {"w": (24, 20)})
    steps = 400
    total = sum(step(memories, compressor, grads, n)["w"].double() for n in range(steps)) / steps
    mean = (grads[0]["w"] + grads[1]["w"]).double() / 2
    assert (total - mean).norm() < 0.15 * mean.norm()


@both
@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e18])
def test_low_rank_gradients_come_back_exactly(method, memory, scale):
    compressor, memories = method(rank=3, min_compression_rate=1), [memory() for _ in range(2)]
    rank_one = torch.randn(30, 1) @ torch.randn(1, 40)
    sums = torch.zeros(30, 40)
    for number in range(4):
        sums += (
            step(memories, compressor, [{"w": rank_one * scale}, {"w": 3 * rank_one * scale}], number)["w"]
            / scale
        )
        # ACP-SGD's first step projects on a random subspace; steps that send Q make up for it.
        if number % 2 or method is PowerSGDCompressor:
            torch.testing.assert_close(sums, (number + 1) * 2 * rank_one, rtol=1e-3, atol=1e-3)
    assert all(bool(t.isfinite().all()) for m in memories for t in m.state["w"].values())


@both
def test_rank_one_of_a_batch_of_equal_shapes(method, memory):
    """Each matrix is normalised on its own, not over the batch."""
    compressor, memories = method(rank=1), [memory()]
    grads = [{str(i): (10.0**i) * torch.randn(20, 1) @ torch.randn(1, 30) for i in range(-3, 4)}]
    first, second = step(memories, compressor, grads, 0), step(memories, compressor, grads, 1)
    for name, value in grads[0].items():
        torch.testing.assert_close(
            first[name] + second[name], 2 * value, rtol=0, atol=1e-4 * float(value.abs().max())
        )


@both
def test_zero_gradients_and_what_comes_after(method, memory):
    compressor, memories = method(rank=2), [memory() for _ in range(2)]
    zero = torch.zeros(40, 30)
    for number in range(3):
        assert not step(memories, compressor, [{"w": zero}, {"w": zero}], number)["w"].any()
    # A matrix with one row: a factor of unit vectors, left over from zeros, would never see it.
    sparse = zero.clone()
    sparse[37] = torch.randn(30)
    result = sum(step(memories, compressor, [{"w": sparse}, {"w": sparse}], n)["w"] for n in (3, 4))
    torch.testing.assert_close(result, 2 * sparse, rtol=1e-4, atol=1e-4)


@both
def test_opposite_gradients_cancel(method, memory):
    compressor, memories = method(rank=2), [memory() for _ in range(2)]
    g = torch.randn(40, 30)
    for number in range(4):
        result = step(memories, compressor, [{"w": g}, {"w": -g}], number)["w"]
        assert result.isfinite().all()
        assert result.abs().max() < 1e-3


@both
def test_abort_restores(method, memory):
    compressor, memories = method(rank=2), [memory() for _ in range(2)]
    for number in range(3):
        step(memories, compressor, gradients(2, SHAPES, number), number)
    before = [m.state_dict() for m in memories]
    pendings, _ = drive(memories, compressor, gradients(2, SHAPES, 9), 3)
    for m, pending in zip(memories, pendings):
        for p in pending:
            m.abort(p)
    for m, old in zip(memories, before):
        for name, slots in old.items():
            torch.testing.assert_close(m.state[name]["e"], slots["e"], rtol=0, atol=1e-5)
            for slot in ("p", "q"):
                assert (slot in m.state[name]) == (slot in slots)
                if slot in slots:
                    assert torch.equal(m.state[name][slot], slots[slot])


@both
def test_nothing_is_written_before_the_end(method, memory):
    """Neither state nor gradient, so that an exchange may be broken off at any time."""
    compressor, m = method(rank=2), memory()
    for number in range(2):
        step([m], compressor, gradients(1, SHAPES), number)
    before = m.state_dict()
    grads = gradients(1, SHAPES, 5)[0]
    rounds = m.rounds([(g, Key(n, step=2)) for n, g in grads.items()], compressor)
    request = next(rounds)
    if method is PowerSGDCompressor:
        rounds.send(request)
    rounds.close()
    for name, slots in before.items():
        assert all(torch.equal(m.state[name][slot], value) for slot, value in slots.items())
        assert torch.equal(grads[name], gradients(1, SHAPES, 5)[0][name])


@both
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows_in_the_first_round(method, memory, bad):
    compressor, memories = method(rank=2), [memory(), memory()]
    step(memories, compressor, gradients(2, SHAPES), 0)
    for number in (1, 2):
        before = [m.state_dict() for m in memories]
        grads = gradients(2, SHAPES, number)
        grads[1]["tall"][199, 19] = bad
        rounds = memories[1].rounds([(g, Key(n, step=number)) for n, g in grads[1].items()], compressor)
        shown = [bool(factor.isfinite().all()) for factor in next(rounds)]
        assert shown == [name != "tall" for name in SHAPES]
        rounds.close()
        for m, old in zip(memories, before):
            assert all(torch.equal(m.state["tall"][slot], value) for slot, value in old["tall"].items())
        step(memories, compressor, gradients(2, SHAPES, number), number)


@both
def test_the_result_may_take_the_gradients_place(method, memory):
    for number in range(2):
        compressor, memories = method(rank=2), [memory(), memory()]
        grads = gradients(1, SHAPES, number)[0]
        items = [[(g.clone(), Key(n, step=number)) for n, g in grads.items()] for _ in memories]
        pendings = []
        for m, item in zip(memories, items):
            rounds = m.rounds(item, compressor)
            answer = None
            with pytest.raises(StopIteration) as end:
                while True:
                    answer = rounds.send(answer)
            pendings.append(end.value.value)
        for one, two, (own, _) in zip(*pendings, items[1]):
            out = torch.empty(one.ctx.shape)
            memories[0].conclude(one, out)
            memories[1].conclude(two, own.view(-1))
            assert torch.equal(out, own)
            name = one.key.name
            assert torch.equal(memories[0].residual(name), memories[1].residual(name))


@pytest.mark.parametrize("method", ["powersgd:rank=4", "acpsgd:rank=4"])
@pytest.mark.parametrize("spike", [3e38, 1e38])
def test_a_spike_does_not_spoil_later_steps(method, spike):
    """Where a factor or its sum over ranks overflows, every rank skips the step."""
    world = grace.simulated(2)
    handles = [grace.manual(method, transport=t) for t in world]
    grads = [torch.randn(30, 40) for _ in world]

    def work(t):
        handle = handles[t.rank]
        handle.step(grads[t.rank], "w")
        before = handle.state_dict()
        result = handle.step(torch.full((30, 40), spike), "w")
        skipped = handle.stats().skipped
        assert bool(result.isfinite().all()) != bool(skipped)
        if skipped:
            assert str(handle.state_dict()) == str(before)
        return [handle.step(torch.ones(30, 40), "w") for _ in range(6)]

    first, second = world.run(work)
    for a, b in zip(first, second):
        assert torch.equal(a, b) and a.isfinite().all()


def test_powersgd_takes_two_rounds_and_acpsgd_one():
    for (method, memory), rounds in zip(PAIRS, (2, 1)):
        _, counted = drive([memory()], method(), gradients(1, SHAPES), 0)
        assert counted == rounds
    _, counted = drive([PowerSGDMemory()], PowerSGDCompressor(num_iters_per_step=3), gradients(1, SHAPES), 0)
    assert counted == 6


def test_more_iterations_approximate_better():
    grads = gradients(2, {"w": (40, 40)})
    mean = (grads[0]["w"] + grads[1]["w"]) / 2
    errors = []
    for iterations in (1, 8):
        memories = [PowerSGDMemory(), PowerSGDMemory()]
        result = step(memories, PowerSGDCompressor(rank=4, num_iters_per_step=iterations), grads, 0)["w"]
        errors.append(float((result - mean).norm()))
    best = float(torch.linalg.svdvals(mean)[4:].norm())
    assert errors[1] < errors[0]
    assert errors[1] < 1.05 * best


def test_acpsgd_sends_p_and_q_in_turn():
    compressor, m = ACPSGDCompressor(rank=2), ACPSGDMemory()
    sizes = []
    for number in range(4):
        rounds = m.rounds([(torch.randn(30, 50), Key("w", step=number))], compressor)
        request = next(rounds)
        sizes.append(tuple(request[0].shape))
        with pytest.raises(StopIteration) as end:
            rounds.send(request)
        m.commit(end.value.value[0])
        assert compressor.payload_bytes_of((30, 50), step=number) == request[0].nbytes
    assert sizes == [(30, 2), (2, 50), (30, 2), (2, 50)]


def test_acpsgd_warm_start_finds_the_subspace():
    """Alternating steps on one matrix are a power iteration: the result approaches the best of that rank."""
    matrix = torch.randn(40, 6) @ torch.diag(torch.tensor([9.0, 7, 5, 1, 0.5, 0.1])) @ torch.randn(6, 50)
    compressor, m = ACPSGDCompressor(rank=3), ACPSGDMemory()
    for number in range(30):
        m.state.setdefault("w", {}).pop("e", None)
        result = step([m], compressor, [{"w": matrix}], number)["w"]
    best = torch.linalg.svdvals(matrix)[3:].norm()
    assert (result - matrix).norm() < 1.01 * best


@both
def test_batching_equals_one_by_one(method, memory):
    compressor, together, alone = method(rank=2), [memory(), memory()], [memory(), memory()]
    for number in range(3):
        grads = gradients(2, SHAPES, number)
        result = step(together, compressor, grads, number)
        for name in SHAPES:
            single = step(alone, compressor, [{name: g[name]} for g in grads], number)
            assert torch.equal(single[name], result[name])


@both
def test_torch_generator_plays_no_part(method, memory):
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        m = memory()
        for number in range(3):
            result = step([m], method(rank=2), gradients(1, SHAPES, number), number)
        assert torch.equal(torch.get_rng_state(), state)
        results.append(result)
    assert all(torch.equal(results[0][n], results[1][n]) for n in SHAPES)


@both
def test_state_dict_continues_exactly(method, memory):
    compressor, memories = method(rank=2), [memory(), memory()]
    for number in range(3):
        step(memories, compressor, gradients(2, SHAPES, number), number)
    resumed = [memory(), memory()]
    for new, old in zip(resumed, memories):
        new.load_state_dict(old.state_dict())
    for number in range(3, 6):
        grads = gradients(2, SHAPES, number)
        one, two = step(memories, compressor, grads, number), step(resumed, compressor, grads, number)
        assert all(torch.equal(one[n], two[n]) for n in SHAPES)


@both
def test_state_is_the_factors_and_one_buffer(method, memory):
    m = memory()
    for number in range(2):
        step([m], method(rank=2), [{"w": torch.randn(30, 4, 5)}], number)
    shapes = {slot: tuple(t.shape) for slot, t in m.state["w"].items()}
    assert shapes.pop("e") == (30, 4, 5)
    assert shapes == ({"q": (2, 20)} if method is PowerSGDCompressor else {"p": (2, 30), "q": (2, 20)})
    m.rescale_(0.5)


@both
def test_state_of_another_model_is_refused(method, memory):
    m = memory()
    for number in range(2):
        step([m], method(rank=2), [{"w": torch.randn(30, 40)}], number)
    with pytest.raises(StateError, match="'w'"):
        step([m], method(rank=2), [{"w": torch.randn(30, 41)}], 2)
    before = m.state["w"]["e"].clone()
    with pytest.raises(StateError, match="'w'"):
        step([m], method(rank=2), [{"w": torch.randn(40, 30)}], 2)
    torch.testing.assert_close(m.state["w"]["e"], before, rtol=0, atol=1e-5)


@both
def test_rank_may_change_between_steps(method, memory):
    memories = [memory(), memory()]
    for number, rank in enumerate((1, 1, 4, 2, 2)):
        result = step(memories, method(rank=rank), gradients(2, SHAPES, number), number)
        assert all(bool(value.isfinite().all()) for value in result.values())


@both
def test_tensors_without_factors_are_refused(method, memory):
    for shape in ((7,), (2, 3), ()):
        with pytest.raises(UnsupportedError, match="'bias'"):
            next(memory().rounds([(torch.ones(shape), Key("bias"))], method(rank=2)))
