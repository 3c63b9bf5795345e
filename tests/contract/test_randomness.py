"""Point 7: randomness is a function of the key, and nothing else changes a bit: threads, backends, other draws."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from contract.cases import (
    LOW_RANK,
    METHODS,
    NAMES,
    bits_equal,
    build,
    cases_of,
    codec,
    decoded,
    gradients,
    key,
    one_rounds,
    payloads_equal,
    run,
)
from grace_dl import kernels, simulated
from grace_dl.kernels import Source

RANDOM = ("int8", "int4", "natural", "qsgd", "terngrad", "randomk", "eden")
"""Draw for every element; others draw for ties and zeros only, or never."""

SHARED = ("randomk",)
"""Draw alike on every rank."""

LARGE = 200_003
"""Above what kernels split over threads, and a multiple of nothing."""


def encoded(name, x, k, residual=False):
    method = codec(name)
    e = x.clone()
    payload, ctx = method.encode_from(Source(e, leave="residual"), k) if residual else method.encode(e, k)
    return payload, decoded(method, payload, ctx, x), e


@pytest.mark.parametrize("name", one_rounds())
def test_same_key_same_bits(name):
    x = gradients(1, 1, (4608,))[0][0]
    first, out, _ = encoded(name, x, key(3))
    torch.rand(7)
    second, again, _ = encoded(name, x, key(3))
    assert payloads_equal(first, second)
    assert bits_equal(out, again)


@pytest.mark.parametrize("name", [n for n in NAMES if n in RANDOM])
def test_every_part_of_the_key_counts(name):
    x = gradients(1, 1, (4608,))[0][0]
    _, out, _ = encoded(name, x, key(3, "ab"))
    for other in (key(4, "ab"), key(3, "ba"), key(3, "abc"), key(3, "ab", rank=1)):
        _, different, _ = encoded(name, x, other)
        if other.rank == 1 and name in SHARED:
            assert torch.equal(out, different)
        else:
            assert (out != different).float().mean() > 0.01, other


@pytest.mark.parametrize("name", ["signsgd", "signum"])
def test_signs_of_zeros_are_drawn_by_key(name):
    x = torch.zeros(4608)
    x[0] = 1.0
    one, _, _ = encoded(name, x, key(0))
    again, _, _ = encoded(name, x, key(0))
    other, _, _ = encoded(name, x, key(1))
    assert payloads_equal(one, again)
    assert not payloads_equal(one, other)


def test_ties_of_a_vote_are_broken_alike_and_fairly():
    world = simulated(2, timeout=20)
    handles = [build(cases_of("signsgd")[0], t) for t in world]
    up = torch.ones(4608)
    results = world.run(lambda t: [handles[t.rank].step(up if t.rank else -up, "w") for _ in range(2)])
    assert bits_equal(results[0][0], results[1][0])
    assert abs(results[0][0].mean()) < 0.1
    assert not torch.equal(results[0][0], results[0][1])


@pytest.mark.parametrize("name", NAMES)
def test_the_global_generator_is_left_alone(name):
    x = gradients(1, 1)[0][0]
    torch.manual_seed(123)
    before = torch.get_rng_state()
    method = codec(name)
    payload, ctx = method.compress(x, "w")
    method.decompress(payload, ctx)
    for case in cases_of(name):
        run(2, case, [[x, x], [x, x]])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", one_rounds())
def test_threads_and_backends_change_no_bit(name, dtype, monkeypatch):
    """Payload, what is decoded and what is left, fused and not."""
    x = gradients(1, 1, (LARGE,), dtype)[0][0]
    threads = torch.get_num_threads()
    results = {}
    try:
        for backend, count in (("reference", 1), ("native", 1), ("native", 2), ("native", 3)):
            monkeypatch.setattr("grace_dl.kernels.forced", backend)
            torch.set_num_threads(count)
            results[backend, count] = (encoded(name, x, key(5)), encoded(name, x, key(6), residual=True))
    finally:
        torch.set_num_threads(threads)
    expected = results.pop(("reference", 1))
    for how, found in results.items():
        for (payload, out, left), (other, decodes, leaves) in zip(expected, found):
            assert payloads_equal(payload, other), f"payload with {how}"
            assert bits_equal(out, decodes), f"decoded with {how}"
            assert bits_equal(left, leaves), f"residual with {how}"


@pytest.mark.parametrize("name", LOW_RANK)
def test_backends_agree_on_low_rank_to_tolerance(name, monkeypatch):
    results = []
    for backend in ("reference", "native"):
        monkeypatch.setattr("grace_dl.kernels.forced", backend)
        results.append(run(2, cases_of(name)[0], gradients(2, 4))[0])
    for a, b in zip(results[0][0], results[1][0]):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)


DIGEST = """
import hashlib, sys
import torch
from grace_dl.kernels import Leave, Source
from contract.cases import codec, decoded, gradients, key, one_rounds
x = gradients(1, 1, (70_001,))[0][0]
for name in one_rounds():
    method, e = codec(name), x.clone()
    payload, ctx = method.encode_from(Source(e, leave="residual"), key(2))
    out = decoded(method, payload, ctx, x)
    parts = [*payload, out, e]
    data = b"".join(p.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for p in parts)
    print(name, hashlib.sha256(data).hexdigest())
"""


def test_the_instruction_set_changes_no_bit(root):
    """The compiled kernels choose by processor; each choice can be forced."""
    kernels.backend("native", "cpu")
    answers = {}
    for isa in ("baseline", "avx2"):
        environment = {**os.environ, "GRACE_ISA": isa, "GRACE_KERNELS": "native", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(root / "tests"), *filter(None, sys.path)])
        done = subprocess.run(
            [sys.executable, "-c", DIGEST], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        answers[isa] = done.stdout.splitlines()
    assert answers["baseline"] == answers["avx2"]
    assert len(answers["baseline"]) == len(one_rounds())


def test_unknown_backends_are_refused(monkeypatch):
    monkeypatch.setattr("grace_dl.kernels.forced", "abacus")
    with pytest.raises(Exception, match=r"abacus.*reference"):
        kernels.of(torch.zeros(1))


def test_ties_of_magnitude_go_to_the_lowest_index():
    for backend in ("reference", "native"):
        module = kernels.backend(backend, "cpu")
        assert module is not None
    x = torch.ones(5000)
    x[::2] = -1
    method = codec("topk", ratio=0.1)
    payload, ctx = method.encode(x, key())
    out = decoded(method, payload, ctx, x)
    assert (out[:500] == x[:500]).all() and (out[500:] == 0).all()


@pytest.mark.parametrize("name", [n for n in NAMES if METHODS[n].cls.elementwise])
def test_buckets_do_not_matter(name):
    """What a parameter gets does not depend on what travels with it: same name, same draws."""
    x = gradients(2, 1)
    case = cases_of(name)[0]
    results = []
    for others in (False, True):
        world = simulated(2, timeout=20)
        handles = [build(case, t) for t in world]

        def work(t, handles=handles, others=others):
            if others:
                handles[t.rank].step(x[t.rank][0] * 2, "another")
            return handles[t.rank].step(x[t.rank][0], "w")

        results.append(world.run(work)[0])
    assert bits_equal(*results)
