"""Methods of two levels: every registered method between nodes, on simulated nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import grace_dl as grace
from contract.cases import CASES, Case, bits_equal, gradients, owed, same
from grace_dl import manual, simulated
from grace_dl.compressor.base import Compressor
from grace_dl.errors import PeerError, StateError
from grace_dl.handle import ManualHandle
from grace_dl.pipeline.bucket import Bucket, Segment
from grace_dl.pipeline.outline import blank_bucket
from grace_dl.session import Session
from values import total

SHAPES = {"a.weight": (64, 72), "a.bias": (64,), "b.weight": (33, 100), "empty": (0,), "c.weight": (1500,)}
NODES = [(2, 2), (2, 3), (3, 2)]
"""Ranks per node, and nodes."""


def value(
    case: Case, ranks_per_node: int | None = None, inner: str = "none", **settings: Any
) -> grace.Method:
    return grace.hierarchical(grace.parse(inner), case.value(**settings), ranks_per_node=ranks_per_node)


def run(
    method: grace.Method, grads: Sequence[Sequence[Tensor]], ranks_per_node: int | None = None
) -> tuple[list[list[Tensor]], list[ManualHandle]]:
    world = simulated(len(grads), timeout=20, ranks_per_node=ranks_per_node)
    handles: list[Any] = [None] * len(grads)

    def work(transport: Any) -> list[Tensor]:
        handles[transport.rank] = manual(method, transport=transport)
        return [handles[transport.rank].step(g, "layer.weight") for g in grads[transport.rank]]

    return world.run(work), handles


@pytest.mark.parametrize("case", CASES[0::3], ids=str)
def test_with_one_rank_per_node_it_is_the_outer_method(case: Case) -> None:
    grads = gradients(3, 3)
    flat, _ = run(case.value(), grads)
    levels, handles = run(value(case, ranks_per_node=1), grads)
    for expected, results in zip(flat, levels):
        assert all(bits_equal(a, b) for a, b in zip(expected, results))
    assert handles[0].stats().between_bytes == handles[0].stats().leaving_bytes > 0


@pytest.mark.parametrize("place, case", list(enumerate(CASES)), ids=str)
def test_nodes_exchange_their_averages(place: int, case: Case) -> None:
    """The result is that of the outer method among nodes whose gradient is the average of their ranks."""
    ranks, nodes = NODES[place % len(NODES)]
    grads = gradients(ranks * nodes, 3)
    results, handles = run(value(case), grads, ranks)
    same(results)
    averages = [
        [total(g) / ranks for g in zip(*grads[first : first + ranks])]
        for first in range(0, ranks * nodes, ranks)
    ]
    flat, among_nodes = run(case.value(), averages)
    # Averaging rounds, so single elements may fall on the other side of a threshold.
    for mine, theirs in zip(results[0], flat[0]):
        off = (mine - theirs).abs() > 1e-4 * theirs.abs().max()
        assert off.float().mean() <= 0.02
    sent = total(torch.tensor(h.stats().between_bytes) for h in handles)
    reference = total(torch.tensor(h.stats().leaving_bytes) for h in among_nodes)
    # Among nodes flags are always sent, because one of them may not use a parameter.
    flags = reference / 1000 if case.method in ("none", "fp16", "bf16") else 0
    assert 0 <= sent - reference <= flags or case.method in ("threshold", "adaq")


@pytest.mark.parametrize("inner", ["none", "int8:memory=residual", "int8", "fp16"])
@pytest.mark.parametrize(
    "outer", ["topk:0.3", "int4:memory=residual", "powersgd:2", "int8:memory=residual,communicator=alltoall"]
)
def test_nothing_is_lost(inner: str, outer: str) -> None:
    """All results and what all ranks still owe add up to all gradients."""
    ranks, nodes = 3, 2
    grads = gradients(ranks * nodes, 6)
    results, handles = run(grace.parse(f"hierarchical(inner={inner}; outer={outer})"), grads, ranks)
    same(results)
    if inner in ("int8", "fp16"):
        return  # without a memory within nodes, their rounding is lost
    given = total(g for of_rank in grads for g in of_rank) / len(grads)
    left = [owed(handle) for handle in handles]
    assert sum(found is not None for found in left) == (len(grads) if "residual" in inner else nodes)
    rest = total(found.view_as(given) for found in left if found is not None) / len(grads)
    assert rest.abs().max() > 0
    assert torch.allclose(total(results[0]) + rest, given, atol=1e-4)


@pytest.mark.parametrize("outer", ["int4:memory=residual", "topk:0.05", "powersgd:2", "none"])
@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_sixty_four_ranks(ranks: int, outer: str) -> None:
    method = grace.parse(outer)
    grads = gradients(64, 2)
    results, handles = run(grace.hierarchical(grace.none(), method), grads, ranks)
    same(results)
    given = total(g.double() for of_rank in grads for g in of_rank).view(-1) / 64
    got = total(r.double() for r in results[0]).view(-1)
    owed = [handle.session.residual("layer.weight") for handle in handles]
    left = total(torch.zeros_like(given) if e is None else e.double().view(-1) for e in owed) / 64
    assert torch.allclose(got + left, given, atol=1e-5)


@pytest.mark.parametrize(
    "outer", ["none", "fp16", "topk:0.3", "powersgd:2", "int4:memory=residual", "qsgd", "signum"]
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_step_leaves_no_trace(outer: str, bad: float) -> None:
    """On any one rank, of the owner's node or another."""
    method = grace.parse(f"hierarchical(inner=int8:memory=residual; outer={outer})")
    clean = gradients(4, 4)
    expected, _ = run(method, clean, 2)
    for rank in range(4):
        grads = [[*of_rank[:2], 3 * of_rank[2], *of_rank[2:]] for of_rank in clean]
        grads[rank][2].view(-1)[5] = bad
        results, handles = run(method, grads, 2)
        same(results)
        assert not results[0][2].isfinite().all()
        assert all(h.stats().skipped == 1 for h in handles)
        del results[0][2]
        for a, b in zip(expected[0], results[0]):
            off = (a - b).abs() > 1e-4 * a.abs().max()
            assert off.float().mean() <= 0.02


class Unwilling(Compressor):
    """Fails on demand."""

    biased = False
    elementwise = True

    def spec(self, numel: int, dtype: torch.dtype) -> Any:
        return ((dtype, numel),)

    def compress(self, tensor: Tensor, name: str) -> Any:
        if tensor.view(-1)[0] == 77:
            raise RuntimeError("not this one")
        return [tensor.clone()], tensor.shape

    def decompress(self, payload: Any, ctx: Any) -> Tensor:
        return payload[0].view(ctx)


@pytest.mark.parametrize("level", ["inner", "outer"])
def test_a_rank_that_fails_gives_all_ranks_an_error(level: str) -> None:
    """Of any rank, on its own node and on others; the next step works, with state as before."""
    broken = grace.custom(Unwilling())
    inner, outer = (broken, grace.topk(0.3)) if level == "inner" else (grace.none(), broken)
    method = grace.hierarchical(inner, outer)
    world = simulated(4, timeout=20, ranks_per_node=2)
    clean = gradients(4, 3)

    def work(transport: Any, fails: bool) -> tuple[list[Tensor], list[str]]:
        handle, results, errors = manual(method, transport=transport), [], []
        for number, grad in enumerate(clean[transport.rank]):
            if fails and number == 1:
                bad = torch.full_like(grad, 77.0) if transport.rank in (0, 1) or level == "outer" else grad
                before = handle.state_dict()
                try:
                    handle.step(bad, "layer.weight")
                except (RuntimeError, PeerError) as error:
                    errors.append(f"{type(error).__name__}: {error}")
                assert handle.state_dict()["steps"] == before["steps"]
            results.append(handle.step(grad, "layer.weight"))
        return results, errors

    expected = world.run(lambda t: work(t, False))
    answers = world.run(lambda t: work(t, True))
    assert all(len(errors) == 1 for _, errors in answers)
    assert any("not this one" in errors[0] for _, errors in answers)
    for (plain, _), (results, _) in zip(expected, answers):
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(plain, results))


def bucket_of(transport: Any, step: int, used: Sequence[str]) -> Bucket:
    generator = torch.Generator().manual_seed(100 * transport.rank + step)
    parts = [torch.randn(shape, generator=generator) for shape in SHAPES.values()]
    flat = torch.cat([part.view(-1) for part in parts])
    views = [v.view(s) for v, s in zip(flat.split([p.numel() for p in parts]), SHAPES.values())]
    segments = [Segment(n, v.view(-1), v, n in used) for n, v in zip(SHAPES, views)]
    return Bucket("bucket", segments, flat)


@pytest.mark.parametrize("case", CASES[1::3], ids=str)
def test_an_outline_has_the_bytes_and_collectives_of_the_exchange(case: Case) -> None:
    ranks, nodes, steps = 2, 3, 2
    world = simulated(ranks * nodes, timeout=20, ranks_per_node=ranks)

    def work(transport: Any) -> Session:
        session = Session(value(case), transport)
        for step in range(steps):
            driver = session.driver()
            driver.launch(bucket_of(transport, step, list(SHAPES)))
            driver.finish()
        return session

    sessions = world.run(work)
    communicator = sessions[0].communicator_of("a.weight")
    stages = communicator.outline(
        blank_bucket([(n, s, torch.float32) for n, s in SHAPES.items()]), lambda n: 5 * n
    )
    requests: list[Any] = [stage.request for stage in stages if stage.request is not None]
    assert stages[-1].request is None
    node = [session.stats for session in sessions[:ranks]]
    assert steps * len(requests) == max(stats.collectives for stats in node)
    within = sum(r.leaving_bytes(6) for r in requests if not r.between)
    assert steps * within == node[0].leaving_bytes - node[0].between_bytes
    if case.value().codec.build(world[0], sessions[0].state).compressor.spec(8, torch.float32) is not None:
        between = steps * sum(r.load * r.leaving_bytes(6) for r in requests if r.between)
        assert between == pytest.approx(sum(stats.between_bytes for stats in node), rel=0.02)


def test_parameters_are_dealt_out_by_size() -> None:
    world = simulated(4, timeout=20, ranks_per_node=2)
    method = grace.hierarchical(outer=grace.topk(0.1))

    def work(transport: Any) -> list[str]:
        session = Session(method, transport)
        for step in range(2):
            driver = session.driver()
            driver.launch(bucket_of(transport, step, list(SHAPES)))
            driver.finish()
        memories = session.memories()
        (memory,) = (m for label, m in memories.items() if label.endswith("/memory"))
        return sorted(memory.state)

    assert world.run(work) == 2 * [["a.weight"], ["b.weight", "c.weight"]]


def test_parameters_that_no_rank_used_keep_their_gradient() -> None:
    world = simulated(4, timeout=20, ranks_per_node=2)

    def work(transport: Any) -> dict[str, Any]:
        session = Session(grace.hierarchical(), transport)
        # One rank uses a.bias; none uses b.weight.
        used = [n for n in SHAPES if n != "b.weight" and (n != "a.bias" or transport.rank == 3)]
        bucket = bucket_of(transport, 0, used)
        before = bucket.segments[2].flat.clone()
        driver = session.driver()
        driver.launch(bucket)
        assert driver.finish()
        assert torch.equal(bucket.segments[2].flat, before)
        assert session.state.steps == {n: 1 for n in SHAPES if n != "b.weight"}
        return {s.name: (s.used, s.flat.clone()) for s in bucket.segments if s.name != "b.weight"}

    answers = world.run(work)
    for name in answers[0]:
        assert all(answer[name][0] for answer in answers)
        assert all(torch.equal(answer[name][1], answers[0][name][1]) for answer in answers)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    grads = gradients(4, 2, dtype=dtype)
    results, _ = run(grace.hierarchical(outer=grace.none()), grads, 2)
    same(results)
    expected = total(of_rank[0].double() for of_rank in grads) / 4
    assert results[0][0].dtype == dtype
    assert torch.allclose(results[0][0].double(), expected, atol=4 * torch.finfo(dtype).eps * 4)


# A different number of ranks ------------------------------------------------------------------------------


def states_of(method: str, ranks: int, nodes: int) -> tuple[list[Any], Tensor, list[Tensor]]:
    """States of all ranks after some steps of two parameters, what they owe of one, and their results."""
    grads = gradients(ranks * nodes, 4)
    results, handles = run(grace.parse(method), grads, ranks)
    left = [owed(handle) for handle in handles]
    return (
        [handle.state_dict() for handle in handles],
        total(found for found in left if found is not None) / len(grads),
        results[0],
    )


@pytest.mark.parametrize(
    "outer", ["topk:0.1", "int4:memory=residual", "int8:memory=residual,communicator=alltoall"]
)
@pytest.mark.parametrize("inner", ["none", "int8:memory=residual"])
@pytest.mark.parametrize("old, new", [((2, 2), (2, 3)), ((2, 3), (2, 2)), ((4, 1), (2, 2)), ((2, 2), (1, 2))])
def test_what_is_owed_is_conserved_on_other_nodes(
    outer: str, inner: str, old: tuple[int, int], new: tuple[int, int]
) -> None:
    text = f"hierarchical(inner={inner}; outer={outer})"
    states, before, _ = states_of(text, *old)
    size = new[0] * new[1]
    world = simulated(size, timeout=20, ranks_per_node=new[0])

    def work(transport: Any) -> tuple[Tensor, list[Tensor], Tensor]:
        handle = manual(grace.parse(text), transport=transport)
        handle.load_state_dict(states)
        loaded = owed(handle)
        after = torch.zeros_like(before) if loaded is None else loaded.clone()
        zeros = torch.zeros(64, 72)
        results = [handle.step(zeros, "layer.weight") for _ in range(3)]
        rest = owed(handle)
        return after, results, torch.zeros_like(before) if rest is None else rest

    answers = world.run(work)
    assert torch.allclose(total(after for after, _, _ in answers) / size, before, atol=1e-5)
    same([results for _, results, _ in answers])
    got = total(answers[0][1]).view(-1) + total(rest for _, _, rest in answers) / size
    assert torch.allclose(got, before, atol=1e-5)


@pytest.mark.parametrize("outer", ["topk:0.1", "powersgd:2", "dgc:0.1,momentum=0.0"])
@pytest.mark.parametrize("gone", [(0,), (1,), (0, 1)], ids=str)
def test_what_ranks_that_are_there_owe_keeps_its_weight(outer: str, gone: tuple[int, ...]) -> None:
    """The states of some ranks are lost: of one, or of a whole node. The first rank of a node owns the parameter."""
    text = f"hierarchical(inner=none; outer={outer})"
    states, _, _ = states_of(text, 2, 3)
    kept = [state for state in states if state["rank"] not in gone]
    world = simulated(4, timeout=20, ranks_per_node=2)

    def work(transport: Any) -> Tensor | None:
        session = Session(grace.parse(text), transport)
        session.load_state_dict(kept, partial=True)
        return session.residual("layer.weight")

    def owes(state: Any) -> Tensor:
        session = Session(grace.parse(text), simulated(1)[0])
        ((_, memory),) = ((label, m) for label, m in session.memories().items() if label.endswith("/memory"))
        memory.load_state_dict(next(iter(state["parts"].values()))["memory"])
        found = memory.residual("layer.weight")
        return torch.zeros(64 * 72) if found is None else found.reshape(-1)

    answers = [answer for answer in world.run(work) if answer is not None]
    # Nodes owe their averages: a third each before, and half each now.
    assert torch.allclose(total(answers) / 4, total(owes(state) for state in kept) / 3, atol=1e-5)


def test_a_state_of_another_place_is_rejected() -> None:
    text = "hierarchical(inner=none; outer=topk:0.1)"
    states, _, _ = states_of(text, 2, 2)
    world = simulated(4, timeout=20, ranks_per_node=4)

    def work(transport: Any) -> str:
        handle = manual(grace.parse(text), transport=transport)
        with pytest.raises(StateError) as caught:
            handle.load_state_dict(states[transport.rank])
        return str(caught.value)

    answers = world.run(work)
    assert "rank 1 of the 2 on node 0, but here is rank 1 of the 4 on node 0; pass a list" in answers[1]


def test_switching_back_and_forth_at_once_keeps_ranks_together() -> None:
    """Only owners have a residual, but plain averaging must send buckets the same way on all ranks."""
    world = simulated(4, timeout=20, ranks_per_node=2)
    grads = gradients(4, 3)

    def work(transport: Any) -> list[Tensor]:
        handle = manual(grace.hierarchical(outer=grace.topk(0.1)), transport=transport)
        results = [handle.step(grads[transport.rank][0], "layer.weight")]
        handle.switch(grace.hierarchical(outer=grace.powersgd(2)))
        handle.switch(grace.hierarchical(outer=grace.none()))
        handle.detach()
        assert handle.state_dict()["moved"] == ["layer.weight"]
        return results + [handle.step(g, "layer.weight") for g in grads[transport.rank][1:]]

    answers = world.run(work)
    same(answers)
    given = total(g for of_rank in grads for g in of_rank) / 4
    assert torch.allclose(total(answers[0]), given, atol=1e-5)
