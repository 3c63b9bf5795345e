"""Outlines: what a method is said to exchange, from its layout alone, is what its program exchanges."""

from __future__ import annotations

import pytest
import torch

from contract.cases import CASES, Case
from grace_dl import simulated
from grace_dl.communicator.state import State
from grace_dl.errors import ConfigError
from grace_dl.pipeline.bucket import Bucket, Segment
from grace_dl.pipeline.outline import blank_bucket
from grace_dl.session import Session

SHAPES = {"a.weight": (64, 72), "a.bias": (64,), "b.weight": (33, 100), "empty": (0,), "c.weight": (1500,)}
STEPS = 2


def run(transport, case: Case, whole: bool) -> Session:
    """A session after a few steps of one bucket."""
    session = Session(case.value(), transport)
    generator = torch.Generator().manual_seed(transport.rank)
    for _ in range(STEPS):
        parts = [torch.randn(shape, generator=generator) for shape in SHAPES.values()]
        flat = torch.cat([part.view(-1) for part in parts])
        views = [v.view(s) for v, s in zip(flat.split([p.numel() for p in parts]), SHAPES.values())]
        segments = [Segment(name, view.view(-1), view) for name, view in zip(SHAPES, views)]
        driver = session.driver()
        driver.launch(Bucket("bucket", segments, flat if whole else None))
        driver.finish()
    return session


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_outline_has_the_bytes_and_collectives_of_the_exchange(case: Case) -> None:
    for size in (1, 2, 3):
        whole = size != 2  # parameters with different methods share no buffer
        world = simulated(size, timeout=20)
        session = world.run(lambda transport: run(transport, case, whole))[0]  # noqa: B023
        stats = session.stats
        bucket = blank_bucket([(n, s, torch.float32) for n, s in SHAPES.items()], whole=whole)
        communicator = session.communicator_of("a.weight")
        varying = communicator.compressor.spec(8, torch.float32) is None
        stages = communicator.outline(bucket, lambda numel: 5 * numel)
        requests = [stage.request for stage in stages if stage.request is not None]
        assert stages[-1].request is None and len(stages) == len(requests) + 1
        assert STEPS * len(requests) == stats.collectives
        if not varying and not communicator.compressor.multi_round:
            assert STEPS * sum(r.payload_bytes for r in requests) == stats.payload_bytes
            assert STEPS * sum(r.leaving_bytes(size) for r in requests) == stats.leaving_bytes
        elif not varying:  # rounds are outlined as equal parts of the same total
            assert (
                abs(STEPS * sum(r.payload_bytes for r in requests) - stats.payload_bytes)
                <= 8 * stats.collectives
            )


def test_a_payload_of_unknown_size_needs_an_estimate() -> None:
    communicator = Case("threshold", "residual", "allgather").value().build(simulated(2)[0], State())
    with pytest.raises(ConfigError, match="depends on the data; pass an estimate"):
        communicator.outline(blank_bucket([("w", (2000,), torch.float32)]))
