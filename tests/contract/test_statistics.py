"""Point 4: unbiased methods are unbiased at the rate their variance predicts; biased ones are contractive."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from contract.cases import METHODS, NAMES, codec, decoded, gradients, key, one_rounds
from grace_dl.kernels import Source

UNBIASED = [n for n in one_rounds() if not METHODS[n].cls.biased and not METHODS[n].cls.lossless]
BIASED = [n for n in one_rounds() if METHODS[n].cls.biased and n not in ("signsgd", "signum")]
DRAWS = 400


def vectors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    normal = torch.randn(600, generator=generator, dtype=torch.float64)
    return {
        "normal": normal,
        "heavy": normal * torch.rand(600, generator=generator, dtype=torch.float64).pow(-0.7).clamp(max=50),
        "positive": normal.abs() + 0.1,
    }


VECTORS = pytest.mark.parametrize("kind", ["normal", "heavy", "positive"])


def expected(name: str, x: Tensor) -> Tensor:
    """What the mean must converge to: `x`, but for TernGrad, which first clips at 2.5 sigma (about zero)."""
    if name == "terngrad":
        limit = 2.5 * x.square().mean().sqrt()
        return x.clamp(-limit, limit)
    return x


def draws(name: str, x: Tensor, count: int, **settings) -> Tensor:
    method = codec(name, **settings)
    out = torch.empty(count, x.numel(), dtype=x.dtype)
    for step in range(count):
        payload, ctx = method.encode(x, key(step))
        out[step] = decoded(method, payload, ctx, x)
    return out


@VECTORS
@pytest.mark.parametrize("name", UNBIASED)
def test_the_mean_converges_at_the_rate_of_the_variance(name, kind):
    x = vectors()[kind]
    samples = draws(name, x, DRAWS)
    target = expected(name, x)
    off = samples.mean(0) - target
    variance = (samples - target).square().mean(0)
    # E|mean - x|^2 = variance / draws. A bias b would add b^2, which shows from about 3 % of the spread.
    ratio = DRAWS * off.square().sum() / variance.sum()
    assert 0.5 < ratio < 1.7, f"the squared error of the mean is {ratio:.2f} times what chance explains"
    # In total, too: rounding that leans one way would add up.
    total = off.sum() / (samples.sum(1).var() / DRAWS).sqrt().clamp(min=1e-300)
    assert abs(total) < 4.5
    # And with ten times fewer draws it is ten times larger, not the same.
    fewer = samples[: DRAWS // 10].mean(0) - target
    assert fewer.square().sum() > 3 * off.square().sum()


@pytest.mark.parametrize(
    "settings", [{"quantum_num": 4}, {"quantum_num": 1}, {"norm": "max", "quantum_num": 3}]
)
def test_qsgd_is_unbiased_with_few_levels(settings):
    x = vectors()["heavy"]
    samples = draws("qsgd", x, DRAWS, **settings)
    ratio = DRAWS * (samples.mean(0) - x).square().sum() / samples.var(0).sum()
    assert 0.5 < ratio < 1.7


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_eden_is_unbiased_with_more_bits(bits):
    x = vectors()["normal"]
    samples = draws("eden", x, DRAWS, bits=bits)
    ratio = DRAWS * (samples.mean(0) - x).square().sum() / samples.var(0).sum()
    assert 0.5 < ratio < 1.7


def relative_variance(name: str, x: Tensor, **settings) -> float:
    samples = draws(name, x, 100, **settings)
    return float((samples - x).square().sum(1).mean() / x.square().sum())


@VECTORS
def test_variance_of_qsgd(kind):
    """Alistarh 2017, lemma 3.1: at most min(d / s^2, sqrt(d) / s), per bucket."""
    x = vectors()[kind]
    for s, d in ((127, 128), (4, 128), (16, 512)):
        bound = min(d / s**2, math.sqrt(d) / s)
        assert relative_variance("qsgd", x, quantum_num=s, bucket_size=d) <= bound


@VECTORS
def test_variance_of_natural(kind):
    """Horvath 2019, theorem 1: at most 1/8."""
    assert relative_variance("natural", vectors()[kind]) <= 1 / 8


@VECTORS
def test_variance_of_randomk(kind):
    """At most d/k - 1."""
    assert relative_variance("randomk", vectors()[kind], ratio=0.25) <= 3.4


def test_error_of_eden():
    """Vargaftik 2022, table 1: about pi/2 - 1, and the distortion of Lloyd-Max of more bits."""
    x = vectors()["normal"]
    for bits, bound in ((1, 0.60), (2, 0.15), (3, 0.042), (4, 0.013)):
        assert relative_variance("eden", x, bits=bits) <= bound


def loss(name: str, x: Tensor, **settings) -> float:
    """|x - C(x)|^2 / |x|^2."""
    method = codec(name, **settings)
    left = x.clone()
    method.encode_from(Source(left, leave="residual"), key())
    return float(left.square().sum() / x.square().sum())


@VECTORS
@pytest.mark.parametrize("name", BIASED)
def test_biased_methods_contract(name, kind):
    for dtype in (torch.float32, torch.float64):
        assert loss(name, vectors()[kind].to(dtype)) < 1


@VECTORS
@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.5, 1.0])
def test_factor_of_topk(kind, ratio):
    x = vectors()[kind]
    k = max(1, round(ratio * x.numel()))
    assert loss("topk", x, ratio=ratio) <= 1 - k / x.numel() + 1e-12


def test_factor_of_randomk_in_expectation():
    x = vectors()["normal"]
    method = codec("randomk", ratio=0.25, scaled=False)
    losses = []
    for step in range(200):
        left = x.clone()
        method.encode_from(Source(left, leave="residual"), key(step))
        losses.append(float(left.square().sum() / x.square().sum()))
    assert sum(losses) / 200 == pytest.approx(0.75, abs=0.01)


@VECTORS
def test_factor_of_efsignsgd(kind):
    """Karimireddy 2019, remark 4: delta = |x|_1^2 / (d |x|_2^2), with equality."""
    x = vectors()[kind]
    delta = float(x.abs().sum() ** 2 / (x.numel() * x.square().sum()))
    assert loss("efsignsgd", x) == pytest.approx(1 - delta, abs=1e-9)


@VECTORS
def test_factor_of_onebit(kind):
    """The means of both signs are the best two values, so at least as good as one scale for both."""
    x = vectors()[kind]
    delta = float(x.abs().sum() ** 2 / (x.numel() * x.square().sum()))
    assert loss("onebit", x) <= 1 - delta + 1e-9


@VECTORS
def test_error_of_threshold_and_inceptionn(kind):
    x = vectors()[kind]
    for name, setting, bound in (("threshold", "threshold", 0.3), ("inceptionn", "error_bound", 2.0**-6)):
        method = codec(name, **{setting: bound})
        payload, ctx = method.encode(x, key())
        assert (decoded(method, payload, ctx, x) - x).abs().max() <= bound


@VECTORS
@pytest.mark.parametrize("name, bound", [("fp16", 2.0**-11), ("bf16", 2.0**-8)])
def test_relative_error_of_casts(name, bound, kind):
    x = vectors()[kind].float()
    method = codec(name)
    payload, ctx = method.encode(x, key())
    out = decoded(method, payload, ctx, x)
    tiny = 2.0**-24 if name == "fp16" else 0.0
    assert ((out - x).abs() <= bound * x.abs() + tiny).all()


@VECTORS
@pytest.mark.parametrize("name, bound", [("fp8", 2.0**-4), ("u8bit", 0.1)])
def test_relative_error_of_small_floats(name, bound, kind):
    """Within a block's range, an element is off by a share of itself; below it, by a share of the smallest step."""
    x = vectors()[kind].float()
    method = codec(name)
    payload, ctx = method.encode(x, key())
    out = decoded(method, payload, ctx, x)
    large = x.abs() > x.abs().max() * 0.02
    assert ((out - x).abs()[large] <= bound * x.abs()[large]).all()


@pytest.mark.parametrize("name, levels", [("int8", 127), ("int4", 7)])
def test_integers_are_off_by_less_than_a_level(name, levels):
    x = gradients(1, 1, (2048,), torch.float64)[0][0]
    method = codec(name)
    payload, ctx = method.encode(x, key())
    level = x.view(-1, 256).abs().amax(1, keepdim=True) / levels
    off = (decoded(method, payload, ctx, x) - x).view(-1, 256).abs()
    assert (off <= level * (1 + 1e-6)).all()


def test_adaq_decodes_each_side_to_its_mean():
    x = vectors()["heavy"]
    method = codec("adaq", ratio=0.1)
    payload, ctx = method.encode(x, key())
    out = decoded(method, payload, ctx, x)
    for side in (1, -1):
        sent = out * side > 0
        assert sent.sum() == round(0.1 * int((x * side > 0).sum()))
        assert (x[sent] * side).min() >= (x[~sent & (x * side > 0)] * side).max()
        assert out[sent].unique().numel() == 1
        assert out[sent][0].item() == pytest.approx(x[sent].mean().item())


def test_names_are_covered():
    """Every built-in method is either lossless, unbiased, biased, a vote or of low rank."""
    rest = set(NAMES) - set(UNBIASED) - set(BIASED) - {"none", "signsgd", "signum"}
    assert all(METHODS[name].cls.multi_round for name in rest)
