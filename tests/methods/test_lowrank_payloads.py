"""PowerSGD and ACP-SGD as compressors alone: payloads, which tensors they take, and settings that are refused."""

from __future__ import annotations

import math

import pytest
import torch

import grace_dl as grace
from grace_dl.errors import ConfigError, PayloadError
from grace_dl.methods.acpsgd import ACPSGDCompressor
from grace_dl.methods.powersgd import PowerSGDCompressor


@pytest.mark.parametrize("method", [PowerSGDCompressor, ACPSGDCompressor])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (5,), (0, 3), (1, 1), (40, 30), (16, 8, 3, 3)])
def test_compress_alone(method, dtype, shape):
    compressor = method(rank=2)
    for tensor in (torch.randn(shape).to(dtype), torch.zeros(shape, dtype=dtype)):
        payload, ctx = compressor.compress(tensor, "w")
        result = compressor.decompress(payload, ctx)
        assert result.shape == tensor.shape
        assert result.dtype == dtype
        assert result.isfinite().all()
        if compressor.fits(shape):
            n, m = tensor.shape[0], tensor[0].numel()
            assert sum(p.numel() for p in payload) == 2 * (n + m)
            error = (result.double() - tensor.double()).norm()
            assert error <= tensor.double().norm()
        else:
            assert torch.equal(result, tensor)


def test_compress_takes_any_strides():
    tensor = torch.randn(30, 1) @ torch.randn(1, 40)
    compressor = PowerSGDCompressor(rank=1)
    for view in (tensor.t().contiguous().t(), torch.stack([tensor, tensor], -1)[..., 0]):
        assert not view.is_contiguous()
        torch.testing.assert_close(compressor.decompress(*compressor.compress(view, "w")), tensor)


def test_residual_and_sums_of_payloads():
    compressor = PowerSGDCompressor(rank=2)
    a, b = torch.randn(30, 40), torch.randn(30, 40)
    (pa, ctx), (pb, _) = compressor.compress(a, "w"), compressor.compress(b, "w")
    rest = a.clone()
    compressor.residual_(rest, pa, ctx)
    torch.testing.assert_close(rest + compressor.decompress(pa, ctx), a)
    out = torch.empty(30 * 40)
    compressor.combine_(out, [pa, pb], ctx)
    torch.testing.assert_close(
        out.view(30, 40), (compressor.decompress(pa, ctx) + compressor.decompress(pb, ctx)) / 2
    )
    strided = torch.empty(40, 30).t()
    compressor.combine_(strided, [pa], ctx)
    torch.testing.assert_close(strided, a - rest)


def test_foreign_payloads_are_refused():
    compressor = PowerSGDCompressor(rank=2)
    payload, ctx = compressor.compress(torch.randn(30, 40), "w")
    for broken in (
        [payload[0]],
        payload[::-1],
        [payload[0][:-1], payload[1]],
        [payload[0], payload[1][:1]],
        [*payload, payload[0]],
        [payload[0].reshape(-1), payload[1]],
        [],
    ):
        with pytest.raises(PayloadError, match="'w'"):
            compressor.combine_(torch.empty(30, 40), [broken], ctx)


@pytest.mark.parametrize("method", [PowerSGDCompressor, ACPSGDCompressor])
@pytest.mark.parametrize(
    "bad",
    [
        {"rank": 0},
        {"rank": 1.5},
        {"rank": True},
        {"min_compression_rate": 0},
        {"min_compression_rate": math.inf},
    ],
)
def test_bad_settings(method, bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        method(**bad)


def test_bad_iterations():
    with pytest.raises(ConfigError, match="num_iters_per_step=0"):
        PowerSGDCompressor(num_iters_per_step=0)


@pytest.mark.parametrize("method", [PowerSGDCompressor, ACPSGDCompressor])
def test_which_tensors_are_taken(method):
    compressor = method(rank=4)
    assert compressor.takes((64, 3, 7, 7))
    for shape in (
        (),
        (5,),
        (4000,),
        (3, 4000),
        (4, 4),
        (16, 16),
        (16, 16, 1),
        (0, 100),
        (100, 0),
        (100, 0, 3),
    ):
        assert not compressor.takes(shape), shape
    assert method(rank=4, min_compression_rate=1).takes((9, 9))
    assert compressor.payload_bytes_of((16, 16)) == 16 * 16 * 4


@pytest.mark.parametrize("build", [grace.powersgd, grace.acpsgd])
def test_compression_starts_at_a_step(build):
    method = build(4, start_iter=10)
    assert method.resolve("w", 9) == grace.none() and method.resolve("w", 10) == build(4)
    with pytest.raises(ConfigError, match="start_iter"):
        build(start_iter=-1)
