"""Point 1: real bytes. Counted by a transport of our own, not taken from the library's statistics."""

from __future__ import annotations

import math

import pytest
import torch

from contract.cases import (
    CASES,
    METHODS,
    NAMES,
    RATIO,
    TWO_PHASES,
    Case,
    build,
    cases_of,
    codec,
    communicator,
    gradients,
    one_rounds,
)
from contract.wire import Counting
from grace_dl import simulated
from grace_dl.compressor.lowrank import LowRankCompressor
from values import not_none

LIMITS = {
    "fp16": 16.01,
    "bf16": 16.01,
    "fp8": 8.2,
    "int8": 8.2,
    "int4": 4.2,
    "u8bit": 8.01,
    "natural": 8.01,
    "qsgd": 8.3,
    "terngrad": 2.0,
    "onebit": 1.01,
    "signsgd": 1.01,
    "signum": 1.01,
    "efsignsgd": 1.01,
    "sketch": 6.2,
    "eden": 1.01,
    "chunktopk": 0.23,
    "demo": 0.36,
}
"""Bits an element, headers included."""

LARGE = (256, 256)


def counted(size: int, case: Case, shape=LARGE, steps: int = 1, grads=None, **settings):
    """All ranks' transports and handles after some steps."""
    world = simulated(size, timeout=20)
    counters = [Counting(t) for t in world]
    handles = [build(case, counters[r], **settings) for r in range(size)]
    grads = grads or gradients(size, steps, shape)
    world.run(lambda t: [handles[t.rank].step(g, "layer.weight") for g in grads[t.rank]])
    return counters, handles


@pytest.mark.parametrize("case", CASES, ids=str)
def test_statistics_are_the_bytes_handed_over(case):
    for size in (1, 2, 3):
        counters, handles = counted(size, case, (64, 72), steps=2)
        for counter, handle in zip(counters, handles):
            # A second phase repeats what the first has counted as payload; what leaves is counted whole.
            if case.communicator in TWO_PHASES:
                assert handle.stats().payload_bytes <= counter.handed
            else:
                assert handle.stats().payload_bytes == counter.handed
            assert abs(handle.stats().leaving_bytes - counter.leaving) <= len(counter.calls)
            assert handle.stats().collectives <= len(counter.calls)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_collective_a_step_for_payloads_of_known_size(case):
    counters, handles = counted(2, case, (64, 72), steps=2)
    method = communicator(handles[0]).compressor
    if method.multi_round:
        expected = 2 * communicator(handles[0]).memory.rounds_per_step(method)
    else:
        expected = 2 if method.spec(4608, torch.float32) is not None else 4
        expected += 2 * (case.communicator in TWO_PHASES)
    if case.communicator == "broadcast":
        expected *= 2
    assert len(counters[0].calls) == expected


@pytest.mark.parametrize("name", one_rounds())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_predicted_size_is_the_payload(name, dtype):
    for numel in (1, 7, 1000, 4608):
        method = codec(name)
        (grad,) = gradients(1, 1, (numel,), dtype)[0]
        payload, _ = method.compress(grad, "layer.weight")
        predicted = method.payload_bytes(numel, dtype)
        if predicted is not None:
            assert sum(part.nbytes for part in payload) == predicted
            assert [(p.dtype, p.numel()) for p in payload] == list(not_none(method.spec(numel, dtype)))


@pytest.mark.parametrize("name", one_rounds())
def test_the_frame_adds_little_to_the_payload(name):
    method = METHODS[name]
    counters, handles = counted(2, Case(name, method.memories[0], "allgather"))
    numel = math.prod(LARGE)
    predicted = communicator(handles[0]).compressor.payload_bytes(numel)
    if predicted is not None:
        parts = len(not_none(communicator(handles[0]).compressor.spec(numel, torch.float32)))
        assert predicted <= counters[0].handed <= predicted + 8 * (1 + parts)


@pytest.mark.parametrize("name", [name for name in NAMES if name in LIMITS])
def test_bits_an_element(name):
    for case in cases_of(name):
        if case.communicator in TWO_PHASES:
            continue
        counters, _ = counted(2, case)
        handed = 8 * counters[0].handed / math.prod(LARGE)
        assert handed <= LIMITS[name], f"{case}: {handed:.3f} bits an element"


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_eden_sends_the_bits_it_is_told(bits):
    counters, _ = counted(2, Case("eden", METHODS["eden"].memories[0], "allgather"), bits=bits)
    assert 8 * counters[0].handed / math.prod(LARGE) <= bits + 0.01


@pytest.mark.parametrize("quantum_num, bits", [(1, 2), (3, 3), (7, 4), (127, 8), (128, 9), (1000, 11)])
def test_qsgd_codes_take_the_bits_of_their_levels(quantum_num, bits):
    counters, _ = counted(2, Case("qsgd", "none", "allgather"), quantum_num=quantum_num)
    assert 8 * counters[0].handed / math.prod(LARGE) <= bits + 32 / 128 + 0.01


@pytest.mark.parametrize("ratio, limit", [(0.01, 9.1), (0.001, 12.4)])
@pytest.mark.parametrize("name", ["topk", "dgc"])
def test_index_bits_of_top_k(name, ratio, limit):
    shape = (1024, 1024)
    method = codec(name, ratio=ratio)
    values = 4 * round(ratio * math.prod(shape))
    counters, _ = counted(2, Case(name, METHODS[name].memories[0], "allgather"), shape, ratio=ratio)
    k = values // 4
    bits = 8 * (counters[0].handed - values) / k
    assert bits <= limit, f"{bits:.2f} bits an index"
    assert method.payload_bytes(math.prod(shape)) is not None


def test_adaq_sends_indices_and_a_sign_only():
    counters, _ = counted(2, Case("adaq", "residual", "allgather"), (1024, 1024), ratio=0.01)
    assert 8 * counters[0].handed / (0.01 * 1024 * 1024) <= 10.4


def test_threshold_sends_what_reaches_it_and_nothing_else():
    quiet = [[torch.full((64, 72), 0.001)] for _ in range(2)]
    counters, _ = counted(2, Case("threshold", "none", "allgather"), grads=quiet)
    assert counters[0].handed <= 128
    loud = [[torch.full((64, 72), 0.001)] for _ in range(2)]
    for rank in range(2):
        loud[rank][0].view(-1)[::100] = 1.0
    counters, _ = counted(2, Case("threshold", "none", "allgather"), grads=loud)
    assert counters[0].handed <= 128 + 47 * (4 + 2)


@pytest.mark.parametrize("name", ["topk", "threshold"])
@pytest.mark.parametrize("value_dtype", ["float16", "bfloat16"])
def test_half_precision_values_on_request(name, value_dtype):
    case = Case(name, "none", "allgather")
    full, _ = counted(2, case)
    half, _ = counted(2, case, value_dtype=value_dtype)
    kept = {"topk": round(RATIO * math.prod(LARGE))}.get(name)
    saved = full[0].handed - half[0].handed
    if kept is not None:
        assert abs(saved - 2 * kept) <= 16
    else:
        assert saved > 0.25 * full[0].handed


@pytest.mark.parametrize("name", [n for n in NAMES if METHODS[n].cls.elementwise])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_bytes_leaving_an_alltoall(name, size):
    case = Case(name, METHODS[name].memories[0], "alltoall")
    counters, handles = counted(size, case)
    payload = not_none(communicator(handles[0]).compressor.payload_bytes(math.prod(LARGE)))
    expected = 2 * payload * (size - 1) / size
    for counter, handle in zip(counters, handles):
        assert counter.leaving == pytest.approx(expected, rel=0.05)
        assert handle.stats().leaving_bytes == pytest.approx(expected, rel=0.05)
        assert handle.stats().payload_bytes == pytest.approx(payload, rel=0.05)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_bytes_leaving_an_allgather_grow_with_the_ranks(size):
    counters, handles = counted(size, Case("qsgd", "none", "allgather"))
    payload = not_none(communicator(handles[0]).compressor.payload_bytes(math.prod(LARGE)))
    assert counters[0].leaving == pytest.approx(payload * (size - 1), rel=0.01)


@pytest.mark.parametrize("name", [n for n in NAMES if METHODS[n].cls.multi_round])
def test_low_rank_sends_factors(name):
    case = Case(name, METHODS[name].memories[0], "allreduce")
    for step in (1, 2):
        counters, handles = counted(2, case, (64, 72), steps=step)
        method = communicator(handles[0]).compressor
        assert isinstance(method, LowRankCompressor)
        predicted = sum(method.payload_bytes_of((64, 72), step=s) for s in range(step))
        assert predicted <= counters[0].handed <= predicted + 64
