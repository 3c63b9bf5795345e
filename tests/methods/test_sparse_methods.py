"""What the sparsifiers, EDEN, sketch and INCEPTIONN must compute, by hand or by definition."""

from __future__ import annotations

import math

import pytest
import torch

import grace_dl as grace
from grace_dl.errors import ConfigError
from grace_dl.kernels import Source
from grace_dl.key import Key
from grace_dl.methods.adaq import AdaqCompressor
from grace_dl.methods.dgc import DgcCompressor, warmup_ratios
from grace_dl.methods.eden import EdenCompressor
from grace_dl.methods.inceptionn import INCEPTIONNCompressor
from grace_dl.methods.randomk import RandomKCompressor
from grace_dl.methods.sketch import SketchCompressor
from grace_dl.methods.threshold import ThresholdCompressor
from grace_dl.methods.topk import TopKCompressor


@pytest.fixture(autouse=True, params=["reference", "native"])
def kernels(request, monkeypatch):
    if request.param == "native":
        pytest.importorskip("grace_dl._native", reason="the compiled kernels are not installed")
    monkeypatch.setattr("grace_dl.kernels.forced", request.param)


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def decoded(compressor, x, **where):
    payload, ctx = compressor.encode(x, Key("w", **where))
    return compressor.decompress(payload, ctx), payload


def wire(payload) -> int:
    return sum(part.nbytes for part in payload)


def test_topk_keeps_exactly_the_largest():
    x = normal(10_000)
    out, _ = decoded(TopKCompressor(0.01), x)
    expected = torch.zeros_like(x)
    places = x.abs().topk(100).indices
    expected[places] = x[places]
    assert torch.equal(out, expected)


def test_topk_takes_the_lowest_index_of_equal_magnitudes():
    x = torch.tensor([1.0, -2.0, 2.0, -2.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0])
    out, _ = decoded(TopKCompressor(0.3), x)
    assert out.tolist() == [0, -2, 2, -2, 0, 0, 0, 0, 0, 0]
    zeros, payload = decoded(TopKCompressor(0.3), torch.zeros(10))
    assert payload[0].numel() == 3 and not zeros.any()


@pytest.mark.parametrize(("ratio", "limit"), [(0.01, 9.1), (0.001, 12.4)])
def test_topk_index_size(ratio, limit):
    _, payload = decoded(TopKCompressor(ratio), normal(1_000_000))
    assert payload[1].nbytes * 8 / payload[0].numel() <= limit


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_narrow_values_saturate_and_leave_their_rounding_in_the_residual(kind):
    x = torch.tensor([3.4e38, -3.4e38, 0.1, 0.0, 0.0, 0.0])
    compressor = TopKCompressor(0.5, kind)
    e = torch.zeros_like(x)
    payload, ctx = compressor.encode_from(Source(e, x, leave="residual"), Key("w"))
    out = compressor.decompress(payload, ctx)
    assert payload[0].element_size() == 2
    assert out.isfinite().all() and out[2] != x[2]
    assert torch.equal(e, x - out)


def test_float64_travels_in_full():
    x = normal(100).double() + 1e-12
    out, payload = decoded(TopKCompressor(1.0), x)
    assert torch.equal(out, x)
    assert payload[0].dtype == torch.float64


def test_threshold_may_send_nothing_or_everything():
    x = normal(1000)
    for limit in (0.0, 0.5, 100.0):
        out, payload = decoded(ThresholdCompressor(limit), x)
        assert torch.equal(out, torch.where(x.abs() >= limit, x, 0.0))
        assert payload[0].numel() == int((x.abs() >= limit).sum())
    assert wire(payload) == 0


def test_threshold_of_negatives():
    out, _ = decoded(ThresholdCompressor(1.0), -torch.arange(4.0))
    assert out.tolist() == [0, -1, -2, -3]


def test_randomk_draws_alike_on_all_ranks_and_differently_by_name_and_step():
    x = torch.arange(1.0, 1001)
    compressor = RandomKCompressor(0.05, scaled=False)
    first, _ = decoded(compressor, x)
    assert torch.equal(first, decoded(compressor, x, rank=3)[0])
    assert not torch.equal(first, decoded(compressor, x, step=1)[0])
    places = first.nonzero().view(-1)
    assert places.numel() == 50
    assert torch.equal(places // 20, torch.arange(50))  # one in each stratum
    a, b = (compressor.encode(x, Key(name))[0][0] for name in ("ab", "ba"))
    assert not torch.equal(a, b)


def test_randomk_is_unbiased_when_scaled():
    x = normal(97).double()
    compressor = RandomKCompressor(0.1)
    total = sum(decoded(compressor, x, step=step)[0] for step in range(4000)) / 4000
    deviation = (total - x).norm() / x.norm()
    assert deviation < 3 * math.sqrt(9 / 4000)


def test_randomk_sends_plain_values_under_error_feedback():
    x, e = normal(1000), torch.zeros(1000)
    compressor = RandomKCompressor(0.1)
    payload, ctx = compressor.encode_from(Source(e, x, leave="residual"), Key("w"))
    out = torch.zeros(1000)
    compressor.accumulate_(out, payload, ctx)
    assert torch.equal(out + e, x)
    assert not bool((out * e).any())


def test_dgc_is_exact_where_the_sample_is_the_tensor():
    x = normal(5000)
    exact, _ = decoded(DgcCompressor(0.02, sample_ratio=1.0), x)
    assert torch.equal(exact, decoded(TopKCompressor(0.02), x)[0])


def test_dgc_counts_stay_within_bounds():
    x = normal(200_000)
    for ratio in (0.001, 0.01, 0.1):
        compressor = DgcCompressor(ratio)
        k = compressor.spec(x.numel(), x.dtype)[0][1]
        out, payload = decoded(compressor, x)
        count = int(payload[2])
        assert 0.8 * k <= count <= k
        sent = out != 0
        assert int(sent.sum()) == count
        # Whatever was sent is larger than whatever was not: an overshoot is trimmed by magnitude.
        assert x[sent].abs().min() >= x[~sent].abs().max()


def test_dgc_warm_up():
    ratios = warmup_ratios(0.001, 4)
    assert ratios[0] == 0.25 and sorted(set(ratios), reverse=True) == ratios and ratios[-1] > 0.001
    assert warmup_ratios(0.001, 3, 0.1) == pytest.approx([0.1, 0.01, 0.001])
    method = grace.dgc(0.001, warmup_stages=2, warmup_coeff=[0.5, 0.1], warmup_steps=10)
    for step, ratio in ((0, 0.5), (9, 0.5), (10, 0.1), (19, 0.1), (20, 0.001), (1000, 0.001)):
        assert method.resolve("w", step) == grace.dgc(ratio)
    assert DgcCompressor(0.5).takes((4, 4)) and not DgcCompressor(0.5).takes((16,))
    assert not DgcCompressor(1.0).takes((4, 4))


def test_adaq_sends_the_mean_of_the_largest_of_each_side():
    x = torch.tensor([4.0, 2.0, 1.0, 1.0, -9.0, -3.0, 0.0, 0.5, 0.1, 0.2])
    out, payload = decoded(AdaqCompressor(0.3), x)
    # 7 positive elements: 2 of them (4, 2) become 3; 2 negative: 1 of them (-9) stays.
    assert out.tolist() == [3, 3, 0, 0, -9, 0, 0, 0, 0, 0]
    assert payload[1].tolist() == [2, 1]


def test_adaq_of_one_side():
    out, _ = decoded(AdaqCompressor(0.5), -torch.ones(6))
    assert out.tolist() == [-1, -1, -1, 0, 0, 0]


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_eden_error_and_size(bits):
    x = normal(200_000)
    out, payload = decoded(EdenCompressor(bits), x)
    # Squared error of the unbiased scale, by the distortion D of Lloyd-Max: D / (1 - D).
    distortion = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497}[bits]
    error = float((out - x).square().sum() / x.square().sum())
    assert error == pytest.approx(distortion / (1 - distortion), rel=0.03)
    assert wire(payload) * 8 / x.numel() <= bits * 1.005 + 0.0105


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_eden_of_least_squares_has_the_smallest_error(bits):
    x = normal(200_000)
    out, _ = decoded(EdenCompressor(bits, "least_squares"), x)
    distortion = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497}[bits]
    assert float((out - x).square().sum() / x.square().sum()) == pytest.approx(distortion, rel=0.03)
    # What is left is orthogonal to what was sent: any other scale would leave more.
    assert abs(float((out.double() * (x - out).double()).sum())) < 1e-3 * float(x.square().sum())


def test_eden_chooses_its_scale_by_the_memory():
    x = normal(8192)

    def first(**settings):
        return grace.manual(grace.eden(**settings)).step(x, "w")

    assert torch.equal(first(), first(scale="unbiased"))
    assert torch.equal(first(memory="residual"), first(memory="residual", scale="least_squares"))
    assert not torch.equal(first(), first(scale="least_squares"))


def test_error_feedback_leaves_less_with_least_squares():
    """Of gradients that differ: e² = c (e² + 1) with c = 1 - 2/π, against c = π/2 - 1."""
    left = {}
    for scale in ("unbiased", "least_squares"):
        handle = grace.manual(grace.eden(memory="residual", scale=scale))
        for step in range(30):
            x = normal(8192, seed=step)
            handle.step(x, "w")
        residual = handle.session.residual("w")
        assert residual is not None
        left[scale] = float(residual.norm() / x.norm())
    assert left["least_squares"] < 0.7 * left["unbiased"]


def test_eden_is_unbiased_also_beside_a_spike():
    x = normal(300).double() * 0.1
    x[7] = 10
    rounds = 1500
    total, spread = torch.zeros_like(x), 0.0
    for step in range(rounds):
        out, _ = decoded(EdenCompressor(), x, step=step)
        total += out / rounds
        spread += float((out - x).square().sum()) / rounds
    assert float((total - x).norm()) < 1.3 * math.sqrt(spread / rounds)


def test_eden_of_equal_elements_is_close():
    out, _ = decoded(EdenCompressor(4), torch.full((4096,), 0.1))
    assert float((out - 0.1).abs().max()) < 0.1


def test_sketch_decodes_to_bucket_means():
    x = torch.tensor([0.0, 1.0, 10.0, 12.0])
    out, _ = decoded(SketchCompressor(2), x)
    assert out.tolist() == [0.5, 0.5, 11, 11]
    constant, _ = decoded(SketchCompressor(), torch.full((1000,), 0.1))
    assert torch.equal(constant, torch.full((1000,), 0.1))


def test_sketch_keeps_sums():
    x = normal(50_000)
    out, payload = decoded(SketchCompressor(), x)
    assert float(out.double().sum() - x.double().sum()) == pytest.approx(0, abs=1e-2)
    assert wire(payload) == 50_000 * 6 // 8 + 64 * 4


@pytest.mark.parametrize("bound", [2.0**-10, 0.01, 1.0])
def test_inceptionn_respects_its_bound(bound):
    x = torch.cat((normal(1000), normal(1000) * 1e-3, normal(50) * 1e4, torch.tensor([3e38, -3e38, 1e-45])))
    compressor = INCEPTIONNCompressor(bound)
    assert compressor.error_bound <= bound < 2 * compressor.error_bound
    out, _ = decoded(compressor, x)
    assert float((out - x).abs().max()) <= compressor.error_bound


def test_inceptionn_sends_two_bits_for_what_it_drops():
    _, payload = decoded(INCEPTIONNCompressor(), torch.full((1000,), 1e-6))
    assert wire(payload) == 250


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: TopKCompressor(0.0), "ratio=0.0"),
        (lambda: TopKCompressor(1.5), r"\(0, 1\]"),
        (lambda: TopKCompressor(0.1, "int8"), "value_dtype"),
        (lambda: RandomKCompressor(-1), "ratio"),
        (lambda: AdaqCompressor("x"), "ratio"),  # type: ignore[arg-type]
        (lambda: ThresholdCompressor(-0.1), "threshold=-0.1"),
        (lambda: ThresholdCompressor(math.nan), "threshold"),
        (lambda: DgcCompressor(0.1, sample_ratio=0), "sample_ratio"),
        (lambda: DgcCompressor(0.1, compress_lower_bound=1.2), "compress_lower_bound"),
        (lambda: DgcCompressor(0.1, max_adaptation_iters=-1), "max_adaptation_iters"),
        (lambda: grace.dgc(0.1, warmup_stages=3, warmup_steps=5, warmup_coeff=[0.5]), "warmup_coeff"),
        (lambda: grace.dgc(0.1, warmup_stages=3, warmup_steps=5, warmup_coeff=2.0), "warmup_coeff"),
        (lambda: EdenCompressor(5), "bits=5"),
        (lambda: SketchCompressor(63), "quantiles=63"),
        (lambda: INCEPTIONNCompressor(0), "error_bound"),
    ],
)
def test_bad_settings(build, words):
    with pytest.raises(ConfigError, match=words):
        build()
