"""The compiled sparse kernels and EDEN give the bits of the reference ones, whatever the input, threads and set."""

from __future__ import annotations

import pytest
import torch

from grace_dl.errors import PayloadError
from grace_dl.kernels import Correction, Source, backend
from grace_dl.kernels.wire import index_bytes
from grace_dl.key import Key
from grace_dl.methods.adaq import AdaqCompressor
from grace_dl.methods.chunktopk import ChunkTopKCompressor
from grace_dl.methods.demo import DemoCompressor
from grace_dl.methods.dgc import DgcCompressor
from grace_dl.methods.eden import EdenCompressor
from grace_dl.methods.inceptionn import INCEPTIONNCompressor
from grace_dl.methods.randomk import RandomKCompressor
from grace_dl.methods.sketch import SketchCompressor
from grace_dl.methods.threshold import ThresholdCompressor
from grace_dl.methods.topk import TopKCompressor
from values import not_none

native = pytest.importorskip("grace_dl._native", reason="the compiled kernels are not installed")
K, R = backend("native", "cpu"), backend("reference", "cpu")

METHODS = {
    "topk 0.1 %": TopKCompressor(0.001),
    "topk 1 %, float16": TopKCompressor(0.01, "float16"),
    "topk 5 %, bfloat16": TopKCompressor(0.05, "bfloat16"),
    "topk 10 %, float32": TopKCompressor(0.1, "float32"),
    "topk 30 %": TopKCompressor(0.3),
    "topk all": TopKCompressor(1.0),
    "threshold": ThresholdCompressor(1.5),
    "threshold, rare, float16": ThresholdCompressor(3.0, "float16"),
    "threshold, none": ThresholdCompressor(1e30),
    "threshold, all": ThresholdCompressor(0.0),
    "randomk": RandomKCompressor(0.1),
    "randomk, plain": RandomKCompressor(0.013, scaled=False),
    "dgc": DgcCompressor(0.01),
    "dgc, float16": DgcCompressor(0.001, fp16_values=True),
    "dgc, exact": DgcCompressor(0.05, sample_ratio=1.0),
    "dgc, random sample": DgcCompressor(0.02, sample_ratio=0.05, strided_sample=False),
    "dgc, tight bounds": DgcCompressor(
        0.02, sample_ratio=0.02, compress_lower_bound=0.99, compress_upper_bound=1.01, resample=False
    ),
    "dgc, no adaptation": DgcCompressor(0.02, max_adaptation_iters=0),
    "dgc 30 %": DgcCompressor(0.3),
    "adaq": AdaqCompressor(0.05),
    "adaq 30 %": AdaqCompressor(0.3),
    "adaq 0.1 %": AdaqCompressor(0.001),
    "adaq all": AdaqCompressor(1.0),
    "eden 1": EdenCompressor(1),
    "eden 2": EdenCompressor(2),
    "eden 3": EdenCompressor(3),
    "eden 4": EdenCompressor(4),
    "eden 1 least squares": EdenCompressor(1, "least_squares"),
    "eden 3 least squares": EdenCompressor(3, "least_squares"),
    "sketch": SketchCompressor(),
    "sketch 1 bit": SketchCompressor(2),
    "sketch 3 bits": SketchCompressor(8),
    "sketch 7 bits": SketchCompressor(128),
    "sketch 8 bits": SketchCompressor(256),
    "chunktopk": ChunkTopKCompressor(),
    "chunktopk, 4 bits": ChunkTopKCompressor(13, 256, 4),
    "chunktopk, signs": ChunkTopKCompressor(1, 64, 1),
    "chunktopk, all": ChunkTopKCompressor(64, 64, 2),
    "demo": DemoCompressor(),
    "demo, float16": DemoCompressor(7, value_dtype="float16"),
    "demo, bfloat16": DemoCompressor(100, value_dtype="bfloat16"),
    "demo, all": DemoCompressor(4096),
    "inceptionn": INCEPTIONNCompressor(),
    "inceptionn, all classes": INCEPTIONNCompressor(2.0**-13),
    "inceptionn, large bound": INCEPTIONNCompressor(0.5),
}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def own(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """A copy that begins `offset` elements into its storage."""
    return torch.empty(tensor.numel() + offset, dtype=tensor.dtype)[offset:].copy_(tensor)


def compare(compressor, monkeypatch, x, g=None, beta=1.0, gamma=1.0, ef=True, offset=0, step=3):
    key = Key("layer.weight", seed=7, step=step, rank=1)
    results = []
    for backend_name in ("native", "reference"):
        monkeypatch.setattr("grace_dl.kernels.forced", backend_name)
        mine, gradient = own(x, offset), None if g is None else own(g, offset)
        if ef:
            payload, ctx = compressor.encode_from(Source(mine, gradient, beta, gamma, leave="residual"), key)
        else:
            out = compressor.spec(x.numel(), x.dtype) and compressor.allocate(x.numel(), x.dtype)
            for part in out or ():
                part.view(torch.uint8).fill_(255)
            payload, ctx = compressor.encode(mine, key, out)
        decoded = own(torch.linspace(-1, 1, x.numel(), dtype=x.dtype), offset)
        compressor._add(decoded, payload, ctx, 0.3)
        results.append((payload, mine, decoded))
        assert g is None or torch.equal(not_none(gradient), g)
    (payload, mine, decoded), (wanted, theirs, expected) = results
    assert len(payload) == len(wanted)
    for one, other in zip(payload, wanted):
        assert one.dtype == other.dtype
        assert torch.equal(bits(one), bits(other))
    assert torch.equal(bits(mine), bits(theirs))
    assert torch.equal(bits(decoded), bits(expected))


def values(n: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, generator=generator, dtype=torch.float64).to(dtype)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    native.set_isa("")


each_method = pytest.mark.parametrize("compressor", METHODS.values(), ids=METHODS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


@each_method
@each_dtype
@pytest.mark.parametrize("n", [1, 7, 33, 1000, 1025, 12289])
def test_sizes(compressor, dtype, n, monkeypatch):
    x, g = values(n, dtype), values(n, dtype, 2)
    compare(compressor, monkeypatch, x, g)
    compare(compressor, monkeypatch, x, ef=False)
    compare(compressor, monkeypatch, x, g, beta=0.9, gamma=1.7, offset=1)


@each_method
@each_dtype
@pytest.mark.parametrize("isa", ["baseline", "avx2"])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_and_instruction_sets(compressor, dtype, isa, threads, monkeypatch):
    if not native.set_isa(isa):
        pytest.skip(f"this processor has no {isa}")
    torch.set_num_threads(threads)
    n = 90_001
    compare(compressor, monkeypatch, values(n, dtype), values(n, dtype, 2), beta=0.5, offset=1)


INPUTS = {
    "zeros": lambda n: torch.zeros(n),
    "negative zeros": lambda n: -torch.zeros(n),
    "all equal": lambda n: torch.full((n,), -0.1),
    "few values": lambda n: values(n, torch.float32).mul(2).round(),
    "subnormal": lambda n: values(n, torch.float32) * 1e-41,
    "huge": lambda n: values(n, torch.float32).clamp(-3, 3) * 1e37,
    "one spike": lambda n: torch.zeros(n).index_fill_(0, torch.tensor([n // 2]), 3e38),
    "sparse": lambda n: values(n, torch.float32) * (torch.arange(n) % 1000 == 7),
    "rising": lambda n: torch.arange(n, dtype=torch.float32),
    "sorted by size": lambda n: values(n, torch.float32).sort().values,
    "mixed scales": lambda n: (
        values(n, torch.float32) * 10.0 ** values(n, torch.float32, 5).mul(8).clamp(-30, 30)
    ),
    "periodic": lambda n: (torch.arange(n) % 64 == 0).float() * 5 + values(n, torch.float32) * 0.01,
}


@each_method
@pytest.mark.parametrize(
    ("n", "dtype"), [(777, torch.float32), (777, torch.float64), (70_003, torch.float32)]
)
@pytest.mark.parametrize("kind", INPUTS)
def test_inputs(compressor, n, dtype, kind, monkeypatch):
    x = INPUTS[kind](n).to(dtype)
    compare(compressor, monkeypatch, x, torch.zeros_like(x))
    compare(compressor, monkeypatch, x, ef=False)


@each_dtype
def test_float64_beyond_float32(dtype, monkeypatch):
    x = values(5000, torch.float64) * 1e300
    for compressor in (TopKCompressor(0.1), TopKCompressor(0.1, "float16"), TopKCompressor(0.1, "float32")):
        compare(compressor, monkeypatch, x, torch.zeros_like(x))
    for scale in (1e300, 1e-300, 1e-320):
        compare(EdenCompressor(2), monkeypatch, values(5000, torch.float64) * scale, ef=False)


@each_dtype
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_correction(dtype, nesterov):
    for n in (1, 1000, 70_001):
        for scale in (1.0, 0.37):
            m, v, g = (values(n, dtype, seed) for seed in (1, 2, 3))
            other_m, other_v = m.clone(), v.clone()
            K.dgc_correct_(Correction(m, v, g, scale), 0.9, nesterov)
            R.dgc_correct_(Correction(other_m, other_v, g, scale), 0.9, nesterov)
            assert torch.equal(m, other_m)
            assert torch.equal(v, other_v)


DGC = {label: compressor for label, compressor in METHODS.items() if label.startswith("dgc")}
each_dgc = pytest.mark.parametrize("compressor", DGC.values(), ids=DGC)


def dgc_state(n, dtype, kind="normal", offset=0):
    first = values(n, dtype, 2) if kind == "normal" else INPUTS[kind](n).to(dtype)
    return [own(t, offset) for t in (values(n, dtype) * 0.5, first, values(n, dtype, 3) * 0.1)]


def compare_dgc(compressor, m, v, g, nesterov=False, scale=1.0, masking=True):
    """One DGC step and its commit, on both backends."""
    k = compressor.spec(v.numel(), v.dtype)[0][1]
    results = []
    for kernels in (K, R):
        a, b = m.clone(), v.clone()
        payload = compressor.allocate(v.numel(), v.dtype)
        for part in payload:
            part.view(torch.uint8).fill_(255)
        sampling = compressor._sampling(v.numel(), k, Key("w", step=5))
        states = [Correction(a, b, g, scale)]
        assert list(kernels.dgc_step_(states, 0.9, nesterov, [sampling], [payload])) == [True]
        corrected = b.clone()
        kernels.dgc_commit_([b], [a] if masking else None, [(payload[0], payload[1], payload[2])])
        results.append((*payload, corrected, a, b))
    for one, other in zip(*results):
        assert torch.equal(bits(one), bits(other))


@each_dgc
@each_dtype
@pytest.mark.parametrize("isa", ["baseline", "avx2"])
@pytest.mark.parametrize(
    ("n", "threads"), [(1, 1), (33, 1), (1025, 1), (70_001, 1), (90_001, 3), (300_000, 2)]
)
def test_dgc_step(compressor, dtype, isa, n, threads):
    if not native.set_isa(isa):
        pytest.skip(f"this processor has no {isa}")
    torch.set_num_threads(threads)
    m, v, g = dgc_state(n, dtype, offset=1)
    compare_dgc(compressor, m, v, g)
    compare_dgc(compressor, m, v, g, nesterov=True, scale=0.37, masking=False)


@each_dgc
@pytest.mark.parametrize("n", [777, 70_003])
@pytest.mark.parametrize("kind", INPUTS)
def test_dgc_step_inputs(compressor, n, kind):
    m, v, g = dgc_state(n, torch.float32, kind)
    compare_dgc(compressor, m, v, g)
    compare_dgc(compressor, m * 0, v, g * 0)


@each_dtype
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("kernels", [K, R], ids=["native", "reference"])
def test_a_dgc_step_that_is_not_finite_leaves_the_state(dtype, threads, nesterov, kernels):
    torch.set_num_threads(threads)
    compressor = DgcCompressor(0.01)
    for n in (100, 200_000):
        k = compressor.spec(n, dtype)[0][1]
        for bad, place in ((float("nan"), 0), (float("inf"), n // 2), (-float("inf"), n - 1)):
            m, v, g = dgc_state(n, dtype)
            a, b = m.clone(), v.clone()
            g[place] = bad
            sampling = compressor._sampling(n, k, Key("w"))
            payload = compressor.allocate(n, dtype)
            steps = kernels.dgc_step_([Correction(a, b, g)], 0.9, nesterov, [sampling], [payload])
            assert list(steps) == [False]
            assert torch.allclose(a, m, atol=1e-6)
            assert torch.allclose(b, v, atol=1e-6)


@each_dtype
@pytest.mark.parametrize("n", [1, 5, 1023, 1024, 1025, 200_000])
def test_square_sum(dtype, n):
    x = values(n, dtype)
    assert K.square_sum(x) == R.square_sum(x)


def test_indices_of_every_density():
    generator = torch.Generator().manual_seed(3)
    for d in (1, 2, 9, 64, 100, 1000, 4096, 100_000):
        for k in sorted({1, 2, d // 100, d // 10, d // 3, d // 2, d - 1, d} - {0}):
            if not 0 < k <= d:
                continue
            for count in {k, k - 1, k // 2, 0}:
                chosen = torch.randperm(d, generator=generator)[:count].sort().values
                mine = torch.full((index_bytes(d, k),), 255, dtype=torch.uint8)
                theirs = mine.clone()
                K.encode_indices(chosen, d, k, mine)
                R.encode_indices(chosen, d, k, theirs)
                assert torch.equal(mine, theirs), (d, k, count)
                assert torch.equal(K.decode_indices(mine, d, k, count), chosen)
                assert torch.equal(R.decode_indices(mine, d, k, count), chosen)
                if count < k:
                    zeroed, by_reference = torch.ones(d), torch.ones(d)
                    K.sparse_zero_(zeroed, mine, k, count)
                    R.sparse_zero_(by_reference, mine, k, count)
                    assert torch.equal(zeroed, by_reference)


@each_dtype
def test_what_ranks_sent_is_combined(dtype):
    """For several tensors at once, over whatever stood there; a broken payload is refused."""
    compressor = DgcCompressor(0.05)
    sizes, sent = (1, 999, 70_001), []
    for n in sizes:
        ranks = [compressor.encode(values(n, dtype, rank), Key("w", rank=rank))[0] for rank in range(3)]
        sent.append([(part, index, count) for part, index, count in ranks])
    mine, theirs = ([values(n, dtype, 9) for n in sizes] for _ in range(2))
    K.sparse_combine_(mine, sent, 0.5)
    R.sparse_combine_(theirs, sent, 0.5)
    for one, other in zip(mine, theirs):
        assert torch.equal(bits(one), bits(other))
    sent[1][2][1].fill_(255)
    for kernels in (K, R):
        with pytest.raises(PayloadError):
            kernels.sparse_combine_(mine, sent, 0.5)


@each_dtype
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_of_dense_parameters(dtype, nesterov):
    for n in (1, 1000, 70_001):
        mean, m = values(n, dtype), values(n, dtype, 2)
        other_mean, other_m = mean.clone(), m.clone()
        assert K.dgc_dense_([mean], [m], 0.9, nesterov) == [True]
        assert R.dgc_dense_([other_mean], [other_m], 0.9, nesterov) == [True]
        assert torch.equal(bits(mean), bits(other_mean))
        assert torch.equal(bits(m), bits(other_m))
        mean[n // 2] = float("nan")
        for kernels in (K, R):
            one, momentum = torch.ones(1, dtype=dtype), torch.ones(1, dtype=dtype)
            assert kernels.dgc_dense_([mean, one], [m, momentum], 0.5, nesterov) == [False, True]
            assert (one.item(), momentum.item()) == ((2.0, 1.0) if nesterov else (1.5, 1.5))
        assert torch.equal(bits(m), bits(other_m))


@each_dtype
@pytest.mark.parametrize("threads", [1, 2])
def test_clear(dtype, threads):
    torch.set_num_threads(threads)
    for n in (0, 1, 1000, 262_145, 700_003):
        whole = torch.ones(n + 3, dtype=dtype)
        K.clear_(whole[2:-1])
        assert torch.equal(whole, torch.cat([torch.ones(2), torch.zeros(n), torch.ones(1)]).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("n", [0, 1, 100])
def test_divide(dtype, n):
    x = torch.randn(n).to(dtype)
    y = x.clone()
    assert not K.divide_(x, 3.0) and not R.divide_(y, 3.0)
    assert torch.equal(x, y)
    for value in (float("inf"), float("nan")):
        for kernels in (K, R):
            assert bool(kernels.divide_(torch.full((n,), value, dtype=dtype), 3.0)) == (n > 0)
