"""An all-to-all cuts buckets into ranges: state follows when buckets are rebuilt, and nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from contract.cases import bits_equal
from grace_dl import simulated
from grace_dl.algebra.text import as_method
from grace_dl.pipeline.bucket import Bucket, Segment
from grace_dl.session import Session
from grace_dl.transport import Transport
from values import total

SHAPES = {"a": (40, 70), "b": (300,), "c": (2000,), "d": (64, 65), "e": (5,)}
ONE = [["a", "b", "c", "d", "e"]]
OTHER = [["d", "c"], ["e", "b"], ["a"]]
RESIDUAL = ["int4:memory=residual", "int8:memory=residual", "onebit", "fp8", "efsignsgd", "sketch"]


def draw(generator: torch.Generator) -> dict[str, Tensor]:
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def step(session: Session, grads: dict[str, Tensor], layout: Sequence[Sequence[str]]) -> dict[str, Tensor]:
    """One training step with these buckets."""
    views = {name: grad.clone() for name, grad in grads.items()}
    driver = session.driver()
    for place, names in enumerate(layout):
        segments = [Segment(name, views[name].view(-1), views[name]) for name in names]
        driver.launch(Bucket(place, segments))
    driver.finish()
    return views


def unsent(sessions: Sequence[Session], name: str) -> Tensor:
    found = [session.residual(name) for session in sessions]
    return (
        total(r.double() for r in found if r is not None) / len(sessions)
        if any(r is not None for r in found)
        else torch.zeros(1)
    )


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("text", RESIDUAL)
def test_nothing_is_lost_when_buckets_are_rebuilt(text: str, size: int) -> None:
    method = as_method(f"{text}{',' if ':' in text else ':'}communicator=alltoall")
    world = simulated(size, timeout=30)
    layouts = [ONE, ONE, OTHER, OTHER, ONE]

    def work(transport: Transport) -> tuple[Session, list[dict[str, Tensor]], list[dict[str, Tensor]]]:
        generator = torch.Generator().manual_seed(transport.rank)
        session = Session(method, transport)
        given, results = [], []
        for place, layout in enumerate(layouts):
            if place and layout is not layouts[place - 1]:
                session.forget_buckets()
            given.append(draw(generator))
            results.append(step(session, given[-1], layout))
        return session, given, results

    ranks = world.run(work)
    sessions = [session for session, _, _ in ranks]
    for name in SHAPES:
        for _, _, results in ranks[1:]:
            assert all(bits_equal(r[name], first[name]) for r, first in zip(results, ranks[0][2]))
        mean = total(g[name].double() for _, given, _ in ranks for g in given).view(-1) / size
        received = total(result[name].double() for result in ranks[0][2]).view(-1)
        assert torch.allclose(received + unsent(sessions, name), mean, rtol=1e-4, atol=1e-4), name


def test_state_that_was_cut_for_another_bucket_moves_between_methods() -> None:
    """int8 → int4 → int8: each stage cuts the bucket in its own way."""
    method = as_method(
        "schedule(0=int8:memory=residual,communicator=alltoall; 2=int4:memory=residual,communicator=alltoall; "
        "4=int8:memory=residual,communicator=alltoall)"
    )
    world = simulated(3, timeout=30)

    def work(transport: Transport) -> tuple[Session, list[dict[str, Tensor]], list[dict[str, Tensor]]]:
        generator = torch.Generator().manual_seed(transport.rank)
        session = Session(method, transport)
        given = [draw(generator) for _ in range(6)]
        return session, given, [step(session, grads, ONE) for grads in given]

    ranks = world.run(work)
    for name in SHAPES:
        mean = total(g[name].double() for _, given, _ in ranks for g in given).view(-1) / 3
        received = total(result[name].double() for result in ranks[0][2]).view(-1)
        owed = unsent([session for session, _, _ in ranks], name)
        assert torch.allclose(received + owed, mean, rtol=1e-4, atol=1e-4), name


def test_the_state_of_an_aborted_first_step_does_not_outlive_its_layout() -> None:
    method = as_method("int8:memory=residual,communicator=alltoall")
    world = simulated(2, timeout=30)

    def work(transport: Transport) -> list[Tensor]:
        generator = torch.Generator().manual_seed(transport.rank)
        session = Session(method, transport)
        bad = draw(generator)
        bad["a"][0, 0] = float("inf")
        first = step(session, bad, ONE)
        assert bool(first["a"].isnan().all()) and session.state.step("a") == 0
        session.forget_buckets()
        return list(step(session, draw(generator), OTHER).values())

    results = world.run(work)
    assert all(bits_equal(a, b) and bool(a.isfinite().all()) for a, b in zip(*results))


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("name, kind", [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_wire_of_16_bits_sums_in_float32(name: str, kind: torch.dtype, size: int) -> None:
    """Each rank's values and the average are rounded to nearest once; the sum over ranks is not."""
    world = simulated(size, timeout=30)
    method = as_method(f"{name}:communicator=alltoall")
    grads = [draw(torch.Generator().manual_seed(rank)) for rank in range(size)]

    def work(transport: Transport) -> dict[str, Tensor]:
        return step(Session(method, transport), grads[transport.rank], ONE)

    results = world.run(work)
    for parameter in SHAPES:
        sums = torch.zeros(SHAPES[parameter])
        narrow = torch.zeros(SHAPES[parameter], dtype=kind)
        for grad in grads:
            sums += grad[parameter].to(kind).float()
            narrow += grad[parameter].to(kind)
        expected = (sums / size).to(kind).float()
        for result in results:
            assert bits_equal(result[parameter], expected)
        if expected.numel() > 1000:
            assert not torch.equal((narrow / size).float(), expected)  # as a sum in 16 bits would give
