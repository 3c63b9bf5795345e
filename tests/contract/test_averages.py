"""Point 8: the average is right for every number of ranks, seen in the limit of no compression."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from contract.cases import (
    CASES,
    LOW_RANK,
    NAMES,
    TWO_PHASES,
    VOTES,
    Case,
    build,
    cases_of,
    communicator,
    decoded,
    gradients,
    run,
    same,
)
from grace_dl import simulated
from grace_dl.key import Key
from values import total

LIMIT: dict[str, tuple[dict[str, Any], float]] = {
    "none": ({}, 1e-6),
    "fp16": ({}, 2e-3),
    "bf16": ({}, 2e-2),
    "fp8": ({}, 0.04),
    "int8": ({}, 0.02),
    "int4": ({}, 0.25),
    "u8bit": ({}, 0.05),
    "inceptionn": ({"error_bound": 2.0**-20}, 1e-5),
    "qsgd": ({"quantum_num": 32767, "norm": "max"}, 1e-4),
    "sketch": ({"quantiles": 256}, 0.1),
    "topk": ({"ratio": 1.0}, 1e-6),
    "chunktopk": ({"chunk": 64, "kept": 64, "bits": 4}, 0.12),
    "demo": ({"kept": 4096}, 1e-6),
    "randomk": ({"ratio": 1.0}, 1e-6),
    "threshold": ({"threshold": 0.0}, 1e-6),
    "dgc": ({"ratio": 0.999, "sample_ratio": 1.0}, 2e-2),
    "powersgd": ({"rank": 24, "min_compression_rate": 0.1}, 1e-3),
    "acpsgd": ({"rank": 24, "min_compression_rate": 0.1}, 1e-3),
}
"""Settings that lose next to nothing, and the error that is left, as a share of the average's norm."""

STEPS = {"acpsgd": 2}
"""Steps after which the sum of results is the sum of averages: ACP-SGD projects on one side, then on the other."""


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", [n for n in NAMES if n in LIMIT])
def test_the_limit_of_no_compression(name, size):
    settings, tolerance = LIMIT[name]
    shape = (24, 64) if name in LOW_RANK else (64, 72)
    grads = gradients(size, 1, shape)
    mean = total(g[0].double() for g in grads) / size
    for case in cases_of(name):
        extra: dict[str, Any] = {"momentum": 0.0} if case.memory == "dgc" else {}
        steps = STEPS.get(name, 1)
        repeated = [g * steps for g in grads]
        results, _ = run(size, case, repeated, **settings, **extra)
        same(results)
        off = (total(results[0]).double() / steps - mean).norm() / mean.norm()
        # Owners encode the average once more.
        allowed = tolerance * (2 if case.communicator in TWO_PHASES else 1)
        assert off <= allowed, f"{case}: off by {off:.2e}"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.memory == "none" and c.communicator not in TWO_PHASES and c.method not in VOTES],
    ids=str,
)
def test_the_result_is_the_mean_of_what_each_rank_sent(case, size):
    """Each rank's own payload, encoded here a second time and decoded alone."""
    grads = gradients(size, 2)
    results, handles = run(size, case, grads)
    method = communicator(build(case)).compressor
    for step in range(2):
        summed = torch.zeros(grads[0][0].numel(), dtype=torch.float64)
        for rank in range(size):
            x = grads[rank][step].view(-1)
            payload, ctx = method.encode(x, Key("layer.weight", 0, step, rank))
            summed += decoded(method, payload, ctx, x).double()
        mean = (summed / size).view_as(results[0][step])
        coarse = {"fp16": 4e-3, "bf16": 4e-2}.get(case.method, 1e-6)
        assert (results[0][step] - mean).abs().max() <= coarse * mean.abs().max()
    assert handles[0].stats().steps == 2


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_identical_gradients(case, size):
    """Equal magnitudes are what even the coarsest method can say: two values, one scale, one sign."""
    signs = gradients(1, 1, seed=9)[0][0].sign()
    x = 0.5 * signs
    if case.method in LOW_RANK:
        x = 0.5 * signs[:, :1] * signs[:1]  # of rank one
    settings: dict[str, Any] = {"ratio": 1.0} if case.method in ("topk", "randomk", "adaq") else {}
    if case.method in ("chunktopk", "demo"):
        settings = LIMIT[case.method][0]
    steps = STEPS.get(case.method, 1)
    results, _ = run(size, case, [[x] * steps] * size, **settings)
    same(results)
    result = total(results[0]) / steps
    if case.method in VOTES:
        assert torch.equal(result, signs)
    elif case.method == "dgc":
        sent = result != 0
        assert torch.allclose(result[sent], x[sent])
        assert 0.25 <= sent.float().mean() <= 0.31
    elif case.method == "eden":
        assert torch.nn.functional.cosine_similarity(result.view(-1), x.view(-1), dim=0) > 0.6
    elif case.method == "qsgd":
        # A level of an l2 norm over 128 equal elements is 0.089 of an element.
        assert (result - x).abs().max() <= 0.5 * 0.09 * (2 if case.communicator in TWO_PHASES else 1)
    else:
        tolerance = {"acpsgd": 1e-4, "powersgd": 1e-4, "sketch": 1e-5, "terngrad": 1e-5}.get(
            case.method, 1e-2
        )
        assert torch.allclose(result, x, atol=tolerance), (result - x).abs().max()


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", [n for n in NAMES if n in VOTES])
def test_votes_are_the_majority(name, size):
    grads = gradients(size, 1)
    for case in cases_of(name):
        results, _ = run(size, case, grads)
        count = total(g[0].sign() for g in grads)
        decided = count != 0
        assert torch.equal(results[0][0][decided], count[decided].sign())
        assert (results[0][0].abs() == 1).all()


def test_a_rank_of_zeros_has_no_vote():
    results, _ = run(2, Case("signsgd", "none", "allgather"), [[torch.zeros(64, 72)], [torch.ones(64, 72)]])
    assert (results[0][0] == 1).all()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_fp16_does_not_overflow_where_the_mean_does_not(size):
    x = torch.full((64, 72), 60000.0)
    for case in cases_of("fp16"):
        results, _ = run(size, case, [[x]] * size)
        assert torch.allclose(results[0][0], x, rtol=2e-3), case


@pytest.mark.parametrize("way", ["allgather", "broadcast", "alltoall", "allreduce"])
def test_many_ranks(way):
    size = 16
    grads = gradients(size, 1)
    world = simulated(size, timeout=30)
    case = Case("none", "none", way)
    handles = [build(case, t) for t in world]
    results = world.run(lambda t: handles[t.rank].step(grads[t.rank][0], "w"))
    mean = total(g[0].double() for g in grads) / size
    assert torch.allclose(results[0].double(), mean, atol=1e-5)
