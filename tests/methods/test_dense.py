"""What the dense and quantising methods compute."""

from __future__ import annotations

import math

import pytest
import torch

from grace_dl.catalog import info as method
from grace_dl.errors import ConfigError
from grace_dl.kernels import Source
from grace_dl.key import Key
from grace_dl.methods.fp16 import FP16Compressor
from grace_dl.methods.natural import NaturalCompressor
from grace_dl.methods.onebit import OneBitCompressor
from grace_dl.methods.qsgd import QSGDCompressor
from grace_dl.methods.terngrad import TernGradCompressor
from grace_dl.methods.u8bit import U8bitCompressor

FED_BACK = [
    "fp16",
    "bf16",
    "fp8",
    "int8",
    "int4",
    "u8bit",
    "natural",
    "qsgd",
    "terngrad",
    "onebit",
    "efsignsgd",
]
ALL = [*FED_BACK, "signsgd", "signum"]


@pytest.fixture(params=["native", "reference"])
def kernels(request, monkeypatch):
    if request.param == "native":
        pytest.importorskip("grace_dl._native", reason="the compiled kernels are not installed")
    monkeypatch.setattr("grace_dl.kernels.forced", request.param)


def sample(n, dtype=torch.float32, seed=0):
    return torch.randn(n, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def decode(compressor, payload, ctx):
    return compressor.decompress(payload, ctx)


@pytest.mark.usefixtures("kernels")
class TestEveryMethod:
    @pytest.mark.parametrize("name", ALL)
    @pytest.mark.parametrize("n", [1, 13, 1000, 3001])
    def test_payload_is_what_spec_says(self, name, n):
        compressor = method(name).cls()
        for dtype in (torch.float32, torch.float64):
            payload, _ = compressor.encode(sample(n, dtype), Key("w"))
            assert tuple((part.dtype, part.numel()) for part in payload) == compressor.spec(n, dtype)

    @pytest.mark.parametrize("name", FED_BACK)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_nothing_is_lost(self, name, dtype):
        compressor = method(name).cls()
        e, g = sample(3001, dtype), sample(3001, dtype, 1)
        wanted = 0.9 * e + 1.1 * g
        payload, ctx = compressor.encode_from(Source(e, g, 0.9, 1.1, leave="residual"), Key("w"))
        assert torch.allclose(
            decode(compressor, payload, ctx) + e, wanted, rtol=0, atol=torch.finfo(dtype).eps * 16
        )

    @pytest.mark.parametrize("name", FED_BACK)
    def test_fused_residual_is_that_of_the_parts(self, name):
        compressor = method(name).cls()
        x = sample(2000)
        payload, ctx = compressor.encode(x, Key("w"))
        parts = x.clone()
        compressor.residual_(parts, payload, ctx)
        fused = x.clone()
        same, _ = compressor.encode_from(Source(fused, leave="residual"), Key("w"))
        assert all(torch.equal(one, other) for one, other in zip(payload, same, strict=True))
        assert torch.allclose(parts, fused, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("name", ALL)
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_degenerate_tensors(self, name, dtype):
        compressor = method(name).cls()
        # Rounding without bias may go up: the largest half-precision number has no neighbour above to go to.
        room = 0.25 if dtype in (torch.float16, torch.bfloat16) else 1.0
        most, least = room * torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
        spike = torch.zeros(700, dtype=dtype)
        spike[3] = most
        for x in (
            torch.zeros(0, dtype=dtype),
            torch.tensor(-2.5, dtype=dtype),
            torch.zeros(3, 5, dtype=dtype),
            torch.full((300,), 0.25, dtype=dtype),
            torch.full((300,), most, dtype=dtype),
            torch.full((300,), -least, dtype=dtype) * 0.25,
            spike,
            sample(60).to(dtype).view(6, 10).t(),
        ):
            payload, ctx = compressor.compress(x, "w")
            back = decode(compressor, payload, ctx)
            assert back.shape == x.shape
            assert back.dtype == x.dtype
            assert torch.isfinite(back).all()
            if not x.any():
                assert not back.any()

    @pytest.mark.parametrize("name", ALL)
    def test_draws_depend_on_the_key_alone(self, name):
        compressor = method(name).cls()
        x = sample(500) * (sample(500, seed=3) > 0)
        state = torch.random.get_rng_state()
        one, _ = compressor.encode(x, Key("w", seed=1, step=2, rank=3))
        other, _ = compressor.encode(x, Key("w", seed=1, step=2, rank=3))
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        assert torch.equal(state, torch.random.get_rng_state())
        if name in ("int8", "int4", "qsgd", "natural", "terngrad", "signsgd"):
            rank, _ = compressor.encode(x, Key("w", seed=1, step=2, rank=4))
            assert not torch.equal(one[0], rank[0])


@pytest.mark.parametrize("name", ["int8", "int4", "qsgd", "natural"])
@pytest.mark.parametrize("scale", [1.0, 1e-40, 1e37])
def test_unbiased(name, scale):
    """The mean of many draws comes as near as their variance predicts, and no nearer."""
    compressor = method(name).cls()
    x = sample(1000).clamp(-3, 3) * scale
    draws = 200
    decoded = []
    for step in range(draws):
        payload, ctx = compressor.encode(x, Key("w", step=step))
        decoded.append(decode(compressor, payload, ctx).double() / scale)
    values = torch.stack(decoded)
    error = float((values.mean(0) - x.double() / scale).square().sum())
    predicted = float(values.var(0).sum()) / draws
    assert 0.75 < error / predicted < 1.3


def test_terngrad_is_unbiased_for_the_clipped_tensor():
    x = sample(1000)
    clipped = x.clamp(-2.5 * x.square().mean().sqrt(), 2.5 * x.square().mean().sqrt())
    compressor = TernGradCompressor()
    total = torch.zeros(1000, dtype=torch.float64)
    for step in range(1000):
        payload, ctx = compressor.encode(x, Key("w", step=step))
        total += decode(compressor, payload, ctx)
    error = total / 1000 - clipped
    scale = float(payload[1])
    assert scale == pytest.approx(float(clipped.abs().max()))
    assert float(error.abs().max()) < 5 * scale / 2 / math.sqrt(1000)


def test_terngrad_keeps_equal_elements():
    for x in (torch.full((100,), 0.7), torch.tensor([-3.0])):
        payload, ctx = TernGradCompressor().encode(x, Key("w"))
        assert torch.equal(decode(TernGradCompressor(), payload, ctx), x)


def test_natural_is_unbiased_below_its_smallest_power():
    """An element more than 126 binades below the largest is sent as the smallest power, rarely, or as zero."""
    smallest = 2.0 ** (1 - 126)
    x = torch.full((4096,), 0.25 * smallest)
    x[0] = 1.0
    payload, ctx = NaturalCompressor().encode(x, Key("w"))
    y = decode(NaturalCompressor(), payload, ctx)[1:]
    assert set((y / smallest).tolist()) == {0.0, 1.0}
    assert float(y.mean() / smallest) == pytest.approx(0.25, abs=0.02)


def test_u8bit_tree():
    from grace_dl.kernels.wire import tree_magnitudes

    values = tree_magnitudes()
    assert len(values) == 128
    assert values[0] == 0
    assert values[-1] == 1
    assert list(values) == sorted(set(values))
    x = torch.tensor([*values, *(-v for v in values)])
    payload, ctx = U8bitCompressor().encode(3 * x, Key("w"))
    assert torch.allclose(decode(U8bitCompressor(), payload, ctx), 3 * x, rtol=1e-6, atol=0)
    assert payload[0].unique().numel() == 255


def test_onebit_decodes_to_the_means():
    x = torch.tensor([-1.0, -3.0, 0.0, 2.0, 4.0])
    payload, ctx = OneBitCompressor().encode(x, Key("w"))
    assert decode(OneBitCompressor(), payload, ctx).tolist() == [-2.0, -2.0, 2.0, 2.0, 2.0]


def test_fp16_shares_do_not_overflow():
    x = torch.tensor([65504.0, -70000.0, 1e30, 1.0, 1e-9])
    compressor, key = FP16Compressor(), Key("w", workers=3, summed=True)
    payload, ctx = compressor.encode(x, key)
    total = payload[0] + payload[0] + payload[0]
    assert torch.isfinite(total).all()
    out = torch.empty(5)
    compressor.combine_(out, [[total]], ctx)
    assert torch.allclose(out, x.clamp(-65504, 65504), rtol=2e-3, atol=1e-6)
    e = torch.zeros(5)
    payload, _ = compressor.encode_from(Source(e, x, leave="residual"), key)
    assert torch.equal(e + payload[0].float() * 3, x)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_what_is_not_finite_stays_so(name):
    x = torch.tensor([1.0, math.inf, -math.inf, math.nan, 3e38])
    payload, _ = method(name).cls().encode(x, Key("w"))
    assert torch.isfinite(payload[0]).tolist() == [True, False, False, False, True]


@pytest.mark.parametrize(
    "name", ["fp16", "bf16", "fp8", "int8", "int4", "u8bit", "natural", "qsgd", "onebit"]
)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_averages_over_workers(name, workers):
    compressor = method(name).cls()
    tensors = [sample(1000, seed=rank) for rank in range(workers)]
    encoded = [compressor.encode(x, Key("w", rank=rank)) for rank, x in enumerate(tensors)]
    out = torch.full((1000,), 77.0)
    compressor.combine_(out, [payload for payload, _ in encoded], encoded[0][1])
    decoded = torch.stack([decode(compressor, payload, ctx) for payload, ctx in encoded])
    assert torch.allclose(out, decoded.mean(0), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"quantum_num": 0}, "quantum_num=0"),
        ({"quantum_num": 40000}, "quantum_num=40000"),
        ({"quantum_num": 1.5}, "quantum_num=1.5"),
        ({"bucket_size": 0}, "bucket_size=0"),
        ({"norm": "l1"}, "norm='l1'"),
    ],
)
def test_qsgd_settings(settings, word):
    with pytest.raises(ConfigError, match=word):
        QSGDCompressor(**settings)


def test_qsgd_knows_when_error_feedback_diverges():
    assert not QSGDCompressor().warn
    assert "quantum_num" in QSGDCompressor(1, 512).warn["residual"]


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("fp16", 16), ("fp8", 8.2), ("int8", 8.2), ("int4", 4.2), ("u8bit", 8.01), ("natural", 8.01), ("qsgd", 8.3),
        ("terngrad", 1.61), ("onebit", 1.01), ("signsgd", 1.01), ("signum", 1.01), ("efsignsgd", 1.01),
    ],
)  # fmt: skip
def test_bits_an_element(name, bits):
    assert method(name).cls().payload_bytes(100_000) * 8 / 100_000 <= bits
