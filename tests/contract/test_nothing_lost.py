"""Point 3: sent + residual == gradient + previous residual."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from contract.cases import (
    CASES,
    EXACT_SPARSE,
    METHODS,
    NAMES,
    build,
    codec,
    decoded,
    gradients,
    key,
    owed,
    run,
    same,
)
from grace_dl import simulated
from grace_dl.kernels import Source
from values import not_none, total

WITH_RESIDUAL = [n for n in NAMES if "residual" in METHODS[n].memories and not METHODS[n].cls.multi_round]
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def close(left, right, scale, dtype, units=8):
    """Equal to rounding: within a few units in the last place of the largest number that took part."""
    unit = torch.finfo(dtype).eps * float(scale)
    return bool((left - right).abs().max() <= units * unit)


@BOTH
@pytest.mark.parametrize("name", WITH_RESIDUAL)
def test_one_step(name, dtype):
    method = codec(name)
    e, g = gradients(1, 2, (4608,), dtype)[0]
    v = e + g
    residual = e.clone()
    payload, ctx = method.encode_from(Source(residual, g, leave="residual"), key(3))
    sent = decoded(method, payload, ctx, v)
    assert residual.isfinite().all()
    if name in EXACT_SPARSE:
        assert torch.equal(sent + residual, v)
        assert (residual[sent != 0] == 0).all()
    else:
        # A stochastic level may lie far above the element, so that rounding is that of the sent value.
        assert close(sent + residual, v, max(v.abs().max(), sent.abs().max()), dtype)


@BOTH
@pytest.mark.parametrize("name", WITH_RESIDUAL)
def test_fused_and_plain_residual_are_alike(name, dtype):
    """`encode_from` is one pass; `encode` and `residual_` are two. Both leave the same."""
    method = codec(name)
    (v,) = gradients(1, 1, (4608,), dtype)[0]
    fused = v.clone()
    first, ctx = method.encode_from(Source(fused, leave="residual"), key(1))
    # With a residual, random-k sends plain values.
    second, ctx = method.paired(feedback=True).encode(v, key(1))
    plain = v.clone()
    method.residual_(plain, second, ctx)
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert close(fused, plain, v.abs().max(), dtype)


@pytest.mark.parametrize("beta, gamma", [(0.5, 1.0), (1.0, 0.25), (0.9, 2.0)])
@pytest.mark.parametrize("name", WITH_RESIDUAL)
def test_factors_of_the_memory(name, beta, gamma):
    method = codec(name)
    e, g = gradients(1, 2, (4608,), torch.float64)[0]
    v = beta * e + gamma * g
    residual = e.clone()
    payload, ctx = method.encode_from(Source(residual, g, beta, gamma, leave="residual"), key())
    sent = decoded(method, payload, ctx, v)
    assert close(sent + residual, v, max(v.abs().max(), sent.abs().max()), torch.float64)


@pytest.mark.parametrize("value_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["topk", "threshold"])
def test_what_halved_values_lose_is_in_the_residual(name, value_dtype):
    method = codec(name, value_dtype=value_dtype)
    (v,) = gradients(1, 1, (4608,))[0]
    residual = v.clone()
    payload, ctx = method.encode_from(Source(residual, leave="residual"), key())
    sent = decoded(method, payload, ctx, v)
    assert torch.equal(sent + residual, v)
    assert (residual[sent != 0] != 0).any()


FORGET = ("none", "signum", "ef21")
"""Memories that do not add what was not sent to later gradients: results do not add up to the gradients."""


@BOTH
@pytest.mark.parametrize("case", [c for c in CASES if c.memory not in FORGET], ids=str)
def test_over_steps_and_ranks(case, dtype):
    """All results and what all ranks still owe add up to all gradients."""
    left = balanced(case, dtype, size=3, steps=6)
    if case.method != "none":
        assert left.abs().max() > 0


MANY = [case for case in CASES if case.memory == METHODS[case.method].memories[0]]
"""Every method with its own memory, through every exchange that carries it."""


@pytest.mark.parametrize("case", MANY, ids=str)
def test_sixty_four_ranks(case):
    """Every exchange: replicas are identical, and what is owed adds up."""
    if case.memory not in FORGET:
        balanced(case, torch.float32, size=64, steps=2)
    else:
        results, _ = run(64, case, gradients(64, 2))
        same(results)
        assert all(result.isfinite().all() for result in results[0])


def balanced(case, dtype, size, steps):
    """Compare all results and what all ranks still owe with all gradients; returns what they owe, on average."""
    # Without momentum DGC's memory is plain accumulation, which can be balanced, and so is DeMo's if it forgets nothing.
    plain: dict[str, dict[str, Any]] = {"dgc": {"momentum": 0.0}, "demo": {"decay": 1.0}}
    settings = plain.get(case.memory, {})
    grads = gradients(size, steps, dtype=dtype)
    results, handles = run(size, case, grads, **settings)
    same(results)
    given = total(g.double() for of_rank in grads for g in of_rank) / size
    got = total(r.double() for r in results[0])
    left = total(not_none(owed(handle)).double().view_as(given) for handle in handles) / size
    scale = max(given.abs().max(), got.abs().max(), left.abs().max())
    # A sum of 16-bit payloads rounds on the way, on no rank in particular.
    summed = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(case.method)
    rounding = summed if summed is not None and case.communicator == "allreduce" else dtype
    if case.memory == "loco":  # rounds its error to 8 bits at every step
        most = max(float(not_none(owed(handle)).abs().max()) for handle in handles)
        assert (got + left - given).abs().max() <= steps * most / 127
    else:
        assert close(got + left, given, scale, rounding, units=8 * steps)
    return left


@BOTH
@pytest.mark.parametrize("case", [c for c in CASES if c.memory == "ef21"], ids=str)
def test_what_an_estimate_lacks_is_owed(case, dtype):
    """EF21: after every step the result and what all ranks owe are the average of that step's gradients."""
    size, steps = 3, 6
    grads = gradients(size, steps, dtype=dtype)
    world = simulated(size, timeout=20)
    handles = [build(case, t) for t in world]
    for step in range(steps):
        results = world.run(lambda t: handles[t.rank].step(grads[t.rank][step], "layer.weight"))  # noqa: B023
        same([[result] for result in results])
        given = total(of_rank[step].double() for of_rank in grads) / size
        left = total(not_none(owed(handle)).double().view_as(given) for handle in handles) / size
        scale = max(given.abs().max(), results[0].abs().max(), left.abs().max())
        assert close(results[0].double() + left, given, scale, dtype, units=8 * steps)


@pytest.mark.parametrize(
    "name", [n for n in NAMES if METHODS[n].cls.biased and METHODS[n].memories[0] != "none"]
)
def test_the_residual_stays_bounded(name):
    """Error feedback that loses nothing but piles up would be of no use."""
    case = next(c for c in CASES if c.method == name)
    grads = gradients(2, 40, (32, 48))
    _, handles = run(2, case, grads)
    left = owed(handles[0])
    if left is not None:
        assert left.norm() < 40 * grads[0][0].norm() / 2
