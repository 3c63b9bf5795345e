"""Peers' bytes are not trusted: whatever arrives, a rank decodes a valid tensor or raises a clear error."""

from __future__ import annotations

import random

import pytest
import torch

from contract.cases import (
    CASES,
    METHODS,
    NAMES,
    Case,
    build,
    cases_of,
    codec,
    communicator,
    gradients,
    key,
    one_rounds,
    owed,
)
from contract.wire import Damaging
from grace_dl import simulated
from grace_dl.compressor.base import Context
from grace_dl.errors import GraceError, PayloadError
from grace_dl.pipeline.frame import pack, unpack
from values import not_none


def raw(tensor):
    return tensor.view(-1).view(torch.uint8)


# Payloads --------------------------------------------------------------------------------------------------

NUMEL = 1500


def payload_of(name, dtype=torch.float32):
    method = codec(name)
    (x,) = gradients(1, 1, (30, 50), dtype)[0]
    payload, _ = method.encode(x.view(-1).view(30, 50), key())
    return method, [p.clone() for p in payload], Context(torch.Size([30, 50]), dtype, key())


def decode(method, payload, ctx):
    """Decode as a communicator does; True where the bytes were refused."""
    out = torch.full((NUMEL,), float("nan"), dtype=ctx.dtype)
    try:
        method.combine_(out, [payload], ctx)
    except PayloadError as error:
        assert len(str(error)) > 20
        return True
    return False


@pytest.mark.parametrize("name", one_rounds())
def test_wrong_sizes_are_refused(name):
    method, payload, ctx = payload_of(name)
    assert not decode(method, payload, ctx)
    for place, part in enumerate(payload):
        for other in (part[:-1], part[:0], torch.cat([part, part[-1:]]), torch.cat([part, part])):
            if other.numel() != part.numel():
                broken = [*payload[:place], other, *payload[place + 1 :]]
                assert decode(method, broken, ctx), f"part {place}: {part.numel()} became {other.numel()}"


@pytest.mark.parametrize("name", one_rounds())
def test_wrong_dtypes_and_missing_parts_are_refused(name):
    method, payload, ctx = payload_of(name)
    for place, part in enumerate(payload):
        for dtype in (torch.int64, torch.float64, torch.bool):
            if dtype != part.dtype:
                broken = [*payload[:place], part.to(dtype), *payload[place + 1 :]]
                assert decode(method, broken, ctx), f"part {place} as {dtype}"
    assert decode(method, payload[:-1], ctx)
    assert decode(method, [*payload, payload[-1]], ctx)
    assert decode(method, [], ctx)


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("name", one_rounds())
def test_flipped_bits_never_crash(name, backend, monkeypatch):
    """Random damage anywhere: refused, or decoded to some tensor of the right size."""
    monkeypatch.setattr("grace_dl.kernels.forced", backend)
    method, payload, ctx = payload_of(name)
    generator = random.Random(7)
    refused = 0
    for trial in range(60):
        broken = [p.clone() for p in payload]
        parts = [raw(p) for p in broken if p.numel()]
        for _ in range(1 + trial % 4):
            part = generator.choice(parts)
            # Beginnings and ends are where scales, counts and codes of indices lie.
            place = generator.choice([0, part.numel() - 1, generator.randrange(part.numel())])
            part[place] ^= 1 << generator.randrange(8)
        refused += decode(method, broken, ctx)
    assert refused < 60


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("fill", [0, 255, 0x7F, 0xAA])
@pytest.mark.parametrize("name", one_rounds())
def test_garbage_never_crashes(name, fill, backend, monkeypatch):
    monkeypatch.setattr("grace_dl.kernels.forced", backend)
    method, payload, ctx = payload_of(name)
    for place in range(len(payload)):
        broken = [p.clone() for p in payload]
        raw(broken[place]).fill_(fill)
        decode(method, broken, ctx)
    for part in payload:
        raw(part).fill_(fill)
    decode(method, payload, ctx)


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("name", ["topk", "adaq", "dgc", "threshold"])
def test_indices_out_of_range_are_refused(name, backend, monkeypatch):
    """All bits of the coded indices set: they lead far beyond the end of the tensor."""
    monkeypatch.setattr("grace_dl.kernels.forced", backend)
    settings = {"threshold": 1.0} if name == "threshold" else {"ratio": 0.02}
    method = codec(name, **settings)
    x = gradients(1, 1, (30, 50))[0][0]
    payload, ctx = method.encode(x, key())
    for part in payload:
        if part.dtype == torch.uint8 and part.numel():
            raw(part).fill_(255)
            break
    assert decode(method, payload, ctx)


SCALED = [
    n
    for n in ("fp8", "int8", "int4", "u8bit", "qsgd", "terngrad", "efsignsgd", "onebit", "eden")
    if n in NAMES
]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", SCALED)
def test_scales_that_are_not_finite_are_refused(name, value):
    method, payload, ctx = payload_of(name)
    scales = next(p for p in payload if p.dtype == torch.float32)
    scales[0] = value
    assert decode(method, payload, ctx)


# Frames ----------------------------------------------------------------------------------------------------


def test_frames_of_varying_size_come_back():
    first = [torch.arange(5), torch.rand(3)]
    parts = [first, None, [torch.empty(0)], [torch.tensor([True])]]
    frame = pack([1, 2, 1, 0], parts, torch.device("cpu"))
    flags, payloads = unpack(frame, 4, rank=0)
    assert flags == [1, 2, 1, 0]
    assert [len(p) for p in payloads] == [2, 0, 1, 1]
    assert torch.equal(payloads[0][0], first[0]) and torch.equal(payloads[0][1], first[1])


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 40, 71])
def test_truncated_frames_are_refused(cut):
    frame = pack([1, 1], [[torch.rand(6)], [torch.arange(3)]], torch.device("cpu"))
    with pytest.raises(PayloadError, match="rank 5"):
        unpack(frame[: min(cut, frame.numel() - 1)], 2, rank=5)


def test_headers_with_any_word_changed_are_refused_or_read():
    frame = pack([1, 1], [[torch.rand(6)], [torch.arange(3)]], torch.device("cpu"))
    for word in range(9):
        for value in (-1, 0, 1, 3, 1000, 2**40, 2**62, -(2**63)):
            broken = frame.clone()
            broken[8 * word : 8 * word + 8].view(torch.int64)[0] = value
            try:
                unpack(broken, 2, rank=0)
            except PayloadError:
                continue


# On the wire -----------------------------------------------------------------------------------------------

KINDS = ("first byte", "last byte", "every byte", "zeros", "random")


def damage(kind, generator, size):
    """Change what arrives from the last rank."""

    def change(verb, call, received):
        bytes_ = raw(received)
        part = bytes_[bytes_.numel() // size * (size - 1) :] if verb == "allgather" else bytes_
        if part.numel() == 0:
            return
        if kind == "first byte":
            part[0] ^= 0x55
        elif kind == "last byte":
            part[-1] ^= 0x55
        elif kind == "every byte":
            part ^= 0xFF
        elif kind == "zeros":
            part.zero_()
        else:
            for _ in range(8):
                part[generator.randrange(part.numel())] ^= 1 << generator.randrange(8)

    return change


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_damaged_frames_end_in_an_error_or_a_tensor(name, kind):
    size = 2
    for case in cases_of(name):
        world = simulated(size, timeout=3)
        generator = random.Random(3)
        handles = [build(case, Damaging(t, damage(kind, generator, size))) for t in world]
        grads = gradients(size, 2, (40, 50))

        messages: list[str] = []

        def work(t, handles=handles, grads=grads, messages=messages):
            for g in grads[t.rank]:
                try:
                    result = handles[t.rank].step(g, "w")
                except GraceError as error:
                    messages.append(str(error))
                    raise
                assert result.shape == g.shape and result.dtype == g.dtype

        # Anything else than our own errors, on whichever rank, is not caught here.
        try:
            world.run(work)
        except GraceError:
            assert all(len(message) > 20 for message in messages)


def test_a_damaged_flag_names_the_rank():
    world = simulated(2, timeout=3)

    def change(verb, call, received):
        received[received.numel() // 2] = 77

    handles = [build(Case("topk", "residual", "allgather"), Damaging(t, change)) for t in world]
    grads = gradients(2, 1)

    def work(t):
        with pytest.raises(PayloadError, match=r"rank 1.*77"):
            handles[t.rank].step(grads[t.rank][0], "w")

    world.run(work)


def test_a_damaged_step_is_taken_back():
    """The residual is as before, and the next step goes well."""
    world = simulated(2, timeout=3)
    state = {"bad": False}

    def change(verb, call, received):
        if state["bad"]:
            received[0] = 77

    handles = [build(Case("topk", "residual", "allgather"), Damaging(t, change)) for t in world]
    grads = gradients(2, 3)

    def step(number):
        return lambda t: handles[t.rank].step(grads[t.rank][number], "w")

    world.run(step(0))
    before = [not_none(owed(handle, "w")).clone() for handle in handles]
    state["bad"] = True
    with pytest.raises(PayloadError):
        world.run(step(1))
    state["bad"] = False
    for handle, kept in zip(handles, before):
        assert torch.allclose(not_none(owed(handle, "w")), kept, atol=1e-6)
    a, b = world.run(step(2))
    assert torch.equal(a, b)


@pytest.mark.parametrize("length", [0, -1, 10**12, 2**62])
def test_absurd_lengths_are_refused(length):
    world = simulated(2, timeout=3)

    def change(verb, call, received):
        if received.dtype == torch.int64:
            received[1] = length

    handles = [build(Case("threshold", "residual", "allgather"), Damaging(t, change)) for t in world]
    grads = gradients(2, 1)

    def work(t):
        with pytest.raises(PayloadError, match="rank 1"):
            handles[t.rank].step(grads[t.rank][0], "w")

    world.run(work)


def test_methods_are_all_covered():
    assert set(one_rounds()) == {n for n in NAMES if not METHODS[n].cls.multi_round}


# Values that are not finite ----------------------------------------------------------------------------------

SPECIAL = [float("nan"), float("inf"), float("-inf")]
CODES = ("inceptionn", "natural", "signsgd", "signum")
"""Methods whose payloads hold no numbers of their own: every code stands for a finite one."""
SENDERS_OF_VALUES = [
    case
    for case in CASES
    if case.communicator in ("allreduce", "allgather") and case.method not in (*CODES, "threshold")
]
"""Without `threshold`, whose frames vary in size: its payload is looked at like all others (see below)."""


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("name", one_rounds())
def test_each_value_of_a_payload_is_looked_at(name, backend, monkeypatch):
    monkeypatch.setattr("grace_dl.kernels.forced", backend)
    method, payload, ctx = payload_of(name)
    assert not int(method.faults(payload, ctx))
    for number, part in enumerate(payload):
        if part.is_floating_point() and part.numel():
            for value in SPECIAL:
                for place in {0, part.numel() // 2, part.numel() - 1}:
                    broken = [p.clone() for p in payload]
                    broken[number].view(-1)[place] = value
                    assert int(method.faults(broken, ctx)), f"{value} at {place} of part {number}"


@pytest.mark.parametrize("case", SENDERS_OF_VALUES, ids=str)
def test_a_step_with_a_value_that_is_not_finite_is_not_good(case):
    """The first value of the last rank is not finite when it arrives: all ranks refuse the step, or skip it."""
    size = 2
    world = simulated(size, timeout=10)
    value = [0.0] * size
    poisoned = [False] * size

    def change(rank):
        def poison(verb, call, received):
            if value[rank] == 0:
                return
            parts = [received] if verb == "allreduce" else values_in_frame(handles[rank])
            for part in parts:
                part.view(-1)[0] = value[rank]
                poisoned[rank] = True

        return poison

    handles = [build(case, Damaging(t, change(t.rank))) for t in world]
    grads = gradients(size, 2 * len(SPECIAL), (40, 50))

    def work(t):
        handle, outcomes = handles[t.rank], []
        for number, g in enumerate(grads[t.rank]):
            value[t.rank] = SPECIAL[number // 2] if number % 2 else 0.0
            skipped = handle.stats().skipped
            try:
                handle.step(g.clone(), "w")
                outcomes.append("skipped" if handle.stats().skipped > skipped else "done")
            except GraceError:
                outcomes.append("refused")
        return outcomes

    first, second = world.run(work)
    assert first == second and set(first[::2]) == {"done"}
    assert poisoned == [True, True] and "done" not in first[1::2]


def values_in_frame(handle):
    """The parts of the last rank's payload that hold numbers."""
    (plan,) = communicator(handle, "w")._plans.values()
    return [
        part
        for payload in plan.layout.peers[-1]
        for part in payload
        if part.is_floating_point() and part.numel()
    ]
