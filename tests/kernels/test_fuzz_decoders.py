"""Peers' bytes are not trusted: whatever arrives gives a clear error or a valid tensor, and touches nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grace_dl.catalog import info as method
from grace_dl.compressor.base import Context
from grace_dl.errors import PayloadError
from grace_dl.kernels import backend
from grace_dl.kernels.wire import index_bytes
from grace_dl.key import Key

NAMES = ["topk", "randomk", "threshold", "dgc", "adaq", "eden", "sketch", "inceptionn", "chunktopk", "demo"]
BACKENDS = ["reference"]
try:
    backend("native", "cpu")
    BACKENDS.append("native")
except Exception:
    pass

GUARD = 64
fuzzed = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
sizes = st.sampled_from([1, 5, 64, 300, 1111])
VARIANTS = {
    "dgc": {"ratio": 0.05},
    "topk": {"ratio": 0.05},
    "adaq": {"ratio": 0.05},
}


def payload_for(compressor, n: int, seed: int):
    x = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    key = Key("w", seed=seed)
    payload, _ = compressor.encode(x, key)
    return [part.clone() for part in payload], Context(x.shape, x.dtype, key)


def mutate(draw, payload):
    """Change bytes, lengths, dtypes or the number of tensors."""
    kind = draw(
        st.sampled_from(["flip", "flip", "flip", "noise", "extreme", "length", "dtype", "missing", "extra"])
    )
    if kind == "missing":
        del payload[draw(st.integers(0, len(payload) - 1))]
        return
    if kind == "extra":
        payload.append(torch.zeros(draw(st.integers(0, 3)), dtype=torch.uint8))
        return
    place = draw(st.integers(0, len(payload) - 1))
    part = payload[place]
    if kind == "length":
        by = draw(st.integers(-3, 3))
        longer = torch.zeros(max(0, part.numel() + by), dtype=part.dtype)
        longer[: min(part.numel(), longer.numel())] = part[: longer.numel()]
        payload[place] = longer
    elif kind == "dtype":
        payload[place] = part.to(
            draw(st.sampled_from([torch.uint8, torch.int64, torch.float16, torch.float64]))
        )
    elif part.numel():
        data = part.view(torch.uint8)
        if kind == "noise":
            seed = draw(st.integers(0, 2**30))
            data.random_(0, 256, generator=torch.Generator().manual_seed(seed))
        elif kind == "extreme":
            data.fill_(draw(st.sampled_from([0, 0x7F, 0x80, 0xFF])))
        else:
            for _ in range(draw(st.integers(1, 4))):
                data[draw(st.integers(0, data.numel() - 1))] ^= draw(st.integers(1, 255))


@pytest.mark.parametrize("which", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_decoders_survive_mutated_payloads(name, which, monkeypatch):
    monkeypatch.setattr("grace_dl.kernels.forced", which)
    compressor = method(name).cls(**VARIANTS.get(name, {}))

    @fuzzed
    @given(st.data(), sizes, st.integers(0, 5))
    def run(data, n, seed):
        payload, ctx = payload_for(compressor, n, seed)
        for _ in range(data.draw(st.integers(1, 3))):
            if payload:
                mutate(data.draw, payload)
        room = torch.full((n + 2 * GUARD,), 7.0)
        out = room[GUARD:-GUARD]
        out.zero_()
        try:
            compressor.accumulate_(out, payload, ctx)
        except PayloadError as error:
            assert len(str(error)) > 20
        assert bool((room[:GUARD] == 7).all()) and bool((room[-GUARD:] == 7).all())

    run()


@pytest.mark.skipif(len(BACKENDS) < 2, reason="the compiled kernels are not installed")
@pytest.mark.parametrize("name", NAMES)
def test_backends_accept_the_same_payloads(name, monkeypatch):
    compressor = method(name).cls(**VARIANTS.get(name, {}))

    @fuzzed
    @given(st.data(), sizes, st.integers(0, 5))
    def run(data, n, seed):
        payload, ctx = payload_for(compressor, n, seed)
        mutate(data.draw, payload)
        verdicts, results = [], []
        for which in BACKENDS:
            monkeypatch.setattr("grace_dl.kernels.forced", which)
            out = torch.zeros(n)
            try:
                compressor.accumulate_(out, payload, ctx)
                verdicts.append(True)
            except PayloadError:
                verdicts.append(False)
            results.append(out)
        assert verdicts[0] == verdicts[1]
        assert torch.equal(results[0].view(torch.int32), results[1].view(torch.int32))

    run()


@pytest.mark.parametrize("which", BACKENDS)
def test_random_bytes_as_indices(which):
    kernel = backend(which, "cpu")

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(st.integers(1, 3000), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**30), st.integers(0, 8))
    def run(d, share, counted, seed, sparse):
        k = max(1, int(share * d))
        count = int(counted * k)
        generator = torch.Generator().manual_seed(seed)
        index = torch.randint(0, 256, (index_bytes(d, k),), generator=generator, dtype=torch.uint8)
        for _ in range(sparse):  # fewer set bits come nearer to what an encoder makes
            index &= torch.randint(0, 256, index.shape, generator=generator, dtype=torch.uint8)
        try:
            found = kernel.decode_indices(index, d, k, count)
        except PayloadError:
            return
        assert found.numel() == count
        assert bool((found[1:] > found[:-1]).all())
        assert count == 0 or (int(found[0]) >= 0 and int(found[-1]) < d)

    run()
