"""DeMo: the cosine transform, what is sent of it, and training at few bytes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import grace_dl as grace
from grace_dl.errors import ConfigError
from grace_dl.key import Key
from grace_dl.methods.demo import DemoCompressor
from values import not_none, total


@pytest.fixture(params=["reference", "native"])
def kernels(request, monkeypatch):
    if request.param == "native":
        pytest.importorskip("grace_dl._native", reason="the compiled kernels are not installed")
    monkeypatch.setattr("grace_dl.kernels.forced", request.param)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def basis(n: int = 64) -> Tensor:
    """The orthonormal cosine transform, by its definition."""
    k = torch.arange(n, dtype=torch.float64)
    matrix = torch.cos(math.pi * (2 * k + 1) * k[:, None] / (2 * n)) * math.sqrt(2 / n)
    matrix[0] /= math.sqrt(2)
    return matrix


def decoded(compressor: DemoCompressor, x: Tensor) -> Tensor:
    payload, ctx = compressor.encode(x, Key("w"))
    return compressor.decompress(payload, ctx)


def largest(tile: Tensor, kept: int) -> Tensor:
    """A tile of which the largest coefficients are left."""
    matrix = basis()
    coefficients = matrix @ tile.double() @ matrix.T
    least = coefficients.abs().view(-1).topk(kept).values[-1]
    return matrix.T @ torch.where(coefficients.abs() >= least, coefficients, 0.0) @ matrix


def test_tiles_of_a_matrix(kernels):
    x = normal(128, 192)
    out = decoded(DemoCompressor(32), x)
    for row in range(0, 128, 64):
        for column in range(0, 192, 64):
            tile = slice(row, row + 64), slice(column, column + 64)
            assert torch.allclose(out[tile].double(), largest(x[tile], 32), atol=1e-5)


def test_consecutive_elements_otherwise(kernels):
    x = normal(100, 100)
    out = decoded(DemoCompressor(32), x).view(-1)
    for start in (0, 4096):
        chunk = slice(start, start + 4096)
        wanted = largest(x.view(-1)[chunk].view(64, 64), 32)
        assert torch.allclose(out[chunk].double().view(64, 64), wanted, atol=1e-5)


@pytest.mark.parametrize("shape", [(1,), (63,), (64, 2), (100, 100), (64, 64), (5000,), (128, 64)], ids=str)
def test_all_coefficients_are_the_tensor(shape, kernels):
    x = normal(*shape)
    assert torch.allclose(decoded(DemoCompressor(4096), x), x, atol=1e-6)


def test_a_smooth_tensor_takes_few_coefficients(kernels):
    wave = torch.cos(torch.linspace(0, 3, 64))
    x = wave[:, None] * wave
    assert float((decoded(DemoCompressor(16), x) - x).norm() / x.norm()) < 0.01


def test_backends_agree_on_tiles(monkeypatch):
    pytest.importorskip("grace_dl._native", reason="the compiled kernels are not installed")
    found = []
    for backend in ("reference", "native"):
        monkeypatch.setattr("grace_dl.kernels.forced", backend)
        handle = grace.manual(grace.demo(value_dtype="bfloat16"))
        results = [handle.step(normal(128, 192, seed=seed), "w") for seed in range(3)]
        found.append([*results, not_none(handle.session.residual("w"))])
    assert all(torch.equal(*pair) for pair in zip(*found))


def test_the_momentum_gives_up_what_was_sent():
    handle = grace.manual(grace.demo(decay=0.5))
    x = normal(64, 64)
    result = handle.step(x, "w")
    (momentum,) = (memory.state["w"]["e"] for memory in handle.session.memories().values())
    assert torch.allclose(momentum, x - result, atol=1e-6)
    assert torch.allclose(not_none(handle.session.residual("w")), 0.5 * momentum.view(-1))


def test_the_sign_of_the_average():
    world = grace.simulated(3, timeout=20)
    grads = [normal(64, 64, seed=rank) for rank in range(3)]
    results = {}
    for sign in (False, True):
        handles = [grace.manual(grace.demo(sign=sign), transport=t) for t in world]
        results[sign] = world.run(lambda t: handles[t.rank].step(grads[t.rank], "w"))[0]  # noqa: B023
    assert torch.equal(results[True], results[False].sign())


def test_the_result_is_the_average():
    world = grace.simulated(3, timeout=20)
    grads = [normal(128, 64, seed=rank) for rank in range(3)]
    handles = [grace.manual(grace.demo(memory="none"), transport=t) for t in world]
    result = world.run(lambda t: handles[t.rank].step(grads[t.rank], "w"))[0]
    mean = total(decoded(DemoCompressor(), grad) for grad in grads) / 3
    assert torch.allclose(result, mean, atol=1e-6)


@pytest.mark.parametrize("settings", [{"kept": 1.5}, {"kept": 0}, {"kept": 4097}, {"sign": 1}, {"decay": 0}])
def test_bad_settings(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        grace.demo(**settings)
