"""Votes, and the memories of Signum and EF-signSGD."""

from __future__ import annotations

import pytest
import torch

from grace_dl.errors import ConfigError, PayloadError
from grace_dl.key import Key
from grace_dl.memory.efsignsgd import EFSignSGDMemory
from grace_dl.memory.residual import ResidualMemory
from grace_dl.memory.signum import SignumMemory
from grace_dl.methods.efsignsgd import EFSignSGDCompressor
from grace_dl.methods.int8 import Int8Compressor
from grace_dl.methods.onebit import OneBitCompressor
from grace_dl.methods.signsgd import SignSGDCompressor
from grace_dl.methods.signum import SignumCompressor
from values import not_none


@pytest.fixture(autouse=True, params=["native", "reference"])
def kernels(request, monkeypatch):
    if request.param == "native":
        pytest.importorskip("grace_dl._native", reason="the compiled kernels are not installed")
    monkeypatch.setattr("grace_dl.kernels.forced", request.param)


def vote(tensors, me=0):
    compressor = SignSGDCompressor()
    encoded = [compressor.encode(x, Key("w", step=5, rank=rank)) for rank, x in enumerate(tensors)]
    out = torch.full_like(tensors[0], 99.0)
    compressor.combine_(out, [payload for payload, _ in encoded], encoded[me][1])
    return out


def test_majority():
    tensors = [
        torch.tensor([1.0, -1.0, 1e-30, -2.0]),
        torch.tensor([3.0, 1.0, -1.0, -2.0]),
        torch.tensor([-1.0, -1.0, 2.0, 5.0]),
    ]
    assert vote(tensors).tolist() == [1.0, -1.0, 1.0, -1.0]


@pytest.mark.parametrize("workers", [2, 4, 6])
def test_ties_fall_the_same_way_everywhere(workers):
    x = torch.randn(4000, generator=torch.Generator().manual_seed(1))
    tensors = [x if rank % 2 else -x for rank in range(workers)]
    results = [vote(tensors, me) for me in range(workers)]
    assert all(torch.equal(result, results[0]) for result in results)
    assert set(results[0].tolist()) == {-1.0, 1.0}
    assert abs(float(results[0].mean())) < 0.1
    assert abs(float((results[0] * x.sign()).mean())) < 0.1


def test_a_zero_tensor_does_not_vote():
    x = torch.tensor([1.0, -1.0, 2.0])
    assert torch.equal(vote([torch.zeros(3), x, torch.zeros(3)]), x.sign())
    assert torch.equal(vote([torch.zeros(3), torch.zeros(3)]), torch.zeros(3))


def test_single_zeros_take_a_random_sign():
    x = torch.zeros(4000)
    x[0] = 1.0
    compressor = SignSGDCompressor()
    payload, ctx = compressor.encode(x, Key("w"))
    y = compressor.decompress(payload, ctx)
    assert y[0] == 1
    assert set(y.tolist()) == {-1.0, 1.0}
    assert abs(float(y.mean())) < 0.1


def test_a_broken_flag_is_refused():
    compressor = SignSGDCompressor()
    payload, ctx = compressor.encode(torch.randn(9), Key("w"))
    payload[1].fill_(7)
    with pytest.raises(PayloadError, match="7"):
        compressor.combine_(torch.zeros(9), [payload], ctx)
    with pytest.raises(PayloadError, match="7"):
        compressor.accumulate_(torch.zeros(9), payload, ctx)


def test_signum_sends_the_momentum():
    memory, compressor = SignumMemory(0.8), SignumCompressor(0.8)
    m = torch.zeros(1000, dtype=torch.float64)
    for step in range(4):
        g = torch.randn(1000, generator=torch.Generator().manual_seed(step))
        pending = memory.begin(g, Key("w", step=step), compressor)
        memory.commit(pending)
        m = 0.8 * m + 0.2 * g
        assert torch.allclose(memory.state["w"]["m"].double(), m, atol=1e-6)
        clear = m.abs() > 1e-5
        assert torch.equal(
            compressor.decompress(pending.payload, pending.ctx)[clear], m.sign().float()[clear]
        )


def test_signum_undoes_a_step():
    memory, compressor = SignumMemory(), SignumCompressor()
    g = torch.randn(500)
    memory.commit(memory.begin(g, Key("w"), compressor))
    before = memory.state["w"]["m"].clone()
    memory.abort(memory.begin(torch.randn(500), Key("w", step=1), compressor))
    assert torch.allclose(memory.state["w"]["m"], before, atol=1e-6)


@pytest.mark.parametrize("momentum", [0, 1, -0.5, float("nan"), "0.9"])
def test_bad_momentum(momentum):
    for kind in (SignumCompressor, SignumMemory):
        with pytest.raises(ConfigError, match="momentum="):
            kind(momentum)


def test_efsign_first_step_is_the_scaled_sign():
    """The result is in units of the gradient, whatever lr: not 1/lr times too large."""
    for lr in (0.1, 1.0, 0.003):
        memory, compressor = EFSignSGDMemory(lr), EFSignSGDCompressor(lr)
        g = torch.randn(1000)
        pending = memory.begin(g, Key("w"), compressor)
        out = torch.empty(1000)
        compressor.combine_(out, [pending.payload, pending.payload], pending.ctx)
        assert torch.allclose(out, g.abs().mean() * g.sign(), rtol=1e-4)


def test_efsign_feeds_back_what_was_not_sent():
    memory, compressor = EFSignSGDMemory(0.1), EFSignSGDCompressor(0.1)
    given, got = torch.zeros(300, dtype=torch.float64), torch.zeros(300, dtype=torch.float64)
    for step in range(20):
        g = torch.randn(300, dtype=torch.float64)
        pending = memory.begin(g, Key("w", step=step), compressor)
        memory.commit(pending)
        out = torch.empty(300, dtype=torch.float64)
        compressor.combine_(out, [pending.payload], pending.ctx)
        given += g
        got += out
    assert torch.allclose(given, got + not_none(memory.residual("w")), atol=1e-12)


TWO_SIDED = [
    (EFSignSGDMemory(), EFSignSGDCompressor()),
    (ResidualMemory(), OneBitCompressor()),
    (ResidualMemory(0.9, 0.3), OneBitCompressor()),
]


@pytest.mark.parametrize("memory, compressor", TWO_SIDED)
def test_a_step_is_undone(memory, compressor):
    memory.load_state_dict({})
    memory.commit(memory.begin(torch.randn(500), Key("w"), compressor))
    before = memory.residual("w")
    memory.abort(memory.begin(torch.randn(500), Key("w", step=1), compressor))
    torch.testing.assert_close(memory.residual("w"), before, rtol=0, atol=1e-6)


@pytest.mark.parametrize("memory, compressor", TWO_SIDED)
def test_what_is_owed_makes_no_difference(memory, compressor):
    """Taking what was sent out of the residual a step later gives the bits of taking it out at once."""
    memory.load_state_dict({})
    e = torch.zeros(500)
    for step in range(5):
        g, key = torch.randn(500), Key("w", step=step)
        pending = memory.begin(g, key, compressor)
        memory.commit(pending)
        x = memory.beta * e + memory.gamma * g
        payload, ctx = compressor.encode(x, key)
        e = x - compressor.decompress(payload, ctx)
        assert all(torch.equal(one, two) for one, two in zip(pending.payload, payload))
        assert torch.equal(memory.residual("w"), e * (memory.beta / memory.gamma))
        saved = memory.state_dict()
        memory.load_state_dict(saved)
    assert torch.equal(memory.compensate(g, "w"), memory.beta * e + memory.gamma * g)
    memory.rescale_(2.0)
    torch.testing.assert_close(memory.residual("w"), 2 * e * (memory.beta / memory.gamma))


def test_another_method_takes_over_what_is_owed():
    memory, compressor = ResidualMemory(), OneBitCompressor()
    memory.commit(memory.begin(torch.randn(500), Key("w"), compressor))
    before, g = not_none(memory.residual("w")), torch.randn(500)
    pending = memory.begin(g, Key("w", step=1), Int8Compressor())
    sent = pending.compressor.decompress(pending.payload, pending.ctx)
    torch.testing.assert_close(not_none(memory.residual("w")) + sent, before + g)
    assert "owed" not in memory.state["w"]


@pytest.mark.parametrize("lr", [0, -1, float("inf"), "0.1"])
def test_bad_rate(lr):
    for kind in (EFSignSGDCompressor, EFSignSGDMemory):
        with pytest.raises(ConfigError, match="lr="):
            kind(lr)
