"""The compiled dense kernels give the bits of the reference ones: any dtype, size, alignment, thread count and set."""

from __future__ import annotations

import pytest
import torch

from grace_dl.compressor.base import Context
from grace_dl.kernels import Source, backend
from grace_dl.kernels.limits import LARGE
from grace_dl.kernels.reference.randomness import draws
from grace_dl.key import Key
from grace_dl.methods.bf16 import BF16Compressor
from grace_dl.methods.efsignsgd import EFSignSGDCompressor
from grace_dl.methods.fp8 import FP8Compressor
from grace_dl.methods.fp16 import FP16Compressor
from grace_dl.methods.int4 import Int4Compressor
from grace_dl.methods.int8 import Int8Compressor
from grace_dl.methods.natural import NaturalCompressor
from grace_dl.methods.onebit import OneBitCompressor
from grace_dl.methods.qsgd import QSGDCompressor
from grace_dl.methods.signsgd import SignSGDCompressor
from grace_dl.methods.signum import SignumCompressor
from grace_dl.methods.terngrad import TernGradCompressor
from grace_dl.methods.u8bit import U8bitCompressor
from values import not_none

native = pytest.importorskip("grace_dl._native", reason="the compiled kernels are not installed")
K, R = backend("native", "cpu"), backend("reference", "cpu")


METHODS = {
    "fp16": FP16Compressor(),
    "fp16 of three": FP16Compressor(),
    "bf16": BF16Compressor(),
    "bf16 of three": BF16Compressor(),
    "fp8": FP8Compressor(),
    "int8": Int8Compressor(),
    "int4": Int4Compressor(),
    "qsgd": QSGDCompressor(),
    "qsgd max": QSGDCompressor(127, 512, "max"),
    "qsgd 1 level": QSGDCompressor(1, 100),
    "qsgd 4 bits, odd bucket": QSGDCompressor(7, 33, "max"),
    "qsgd 11 bits": QSGDCompressor(1000, 64),
    "qsgd 16 bits": QSGDCompressor(32767, 2000),
    "qsgd bucket of one": QSGDCompressor(3, 1),
    "u8bit": U8bitCompressor(),
    "natural": NaturalCompressor(),
    "terngrad": TernGradCompressor(),
    "onebit": OneBitCompressor(),
    "efsignsgd": EFSignSGDCompressor(),
    "signsgd": SignSGDCompressor(),
    "signum": SignumCompressor(),
}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


KEY = Key("layer.weight", seed=7, step=3, workers=3)


def encode(kernel, compressor, x, g, beta, gamma, ef, key):
    out = compressor.allocate(x.numel(), x.dtype)
    for part in out:
        part.view(torch.uint8).fill_(255)
    owed = torch.tensor([-0.3, 0.7], dtype=x.dtype)
    source = Source(x, g, beta, gamma, compressor.leaves if ef else "input", owed)
    return [*compressor._run(kernel, source, key, out), owed]


def compare(name, monkeypatch, x, g, beta=1.0, gamma=1.0, ef=True, misaligned=False):
    def own(tensor):
        if tensor is None:
            return None
        room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
        view = room[1:] if misaligned else room[:-1]
        return view.copy_(tensor)

    compressor, key = METHODS[name], KEY._replace(summed=name.endswith("of three"))
    mine, theirs, gradient = own(x), x.clone(), own(g)
    payload = encode(K, compressor, mine, gradient, beta, gamma, ef, key)
    wanted = encode(R, compressor, theirs, g, beta, gamma, ef, key)
    for one, other in zip(payload, wanted, strict=True):
        assert torch.equal(bits(one), bits(other))
    assert torch.equal(bits(mine), bits(theirs))
    if g is not None:
        assert torch.equal(bits(gradient), bits(g))
    start, ctx = torch.linspace(-1, 1, x.numel(), dtype=x.dtype), Context(x.shape, x.dtype, key)
    mine, theirs = own(start), start.clone()
    for kind, out in (("native", mine), ("reference", theirs)):
        monkeypatch.setattr("grace_dl.kernels.forced", kind)
        compressor.accumulate_(out, payload[: len(not_none(compressor.spec(1, x.dtype)))], ctx)
    assert torch.equal(bits(mine), bits(theirs))
    assert torch.isfinite(mine).all()


def tensor(kind: str, n: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + n)
    x = torch.randn(n, dtype=dtype, generator=generator)
    tiny = torch.finfo(dtype).smallest_normal
    if kind == "zeros":
        return torch.zeros(n, dtype=dtype)
    if kind == "sparse":
        return x * (torch.rand(n, generator=generator) < 0.1)
    if kind == "subnormal":
        return x * tiny * 0.01
    if kind == "smallest":
        return (x.sign() * (x.abs() > 1)) * tiny * torch.finfo(dtype).eps
    if kind == "huge":
        return (x * 0.3).clamp(-1, 1) * torch.finfo(dtype).max
    if kind == "wide":
        exponent = 140 if dtype is torch.float64 else 30
        return x * 10.0 ** (torch.rand(n, dtype=dtype, generator=generator) * 2 - 1).mul(exponent)
    return x


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("isa", ["baseline", "avx2"])
def test_sizes_alignment_and_sources(name, dtype, isa, monkeypatch):
    if not native.set_isa(isa):
        pytest.skip(f"this processor has no {isa}")
    try:
        for n in (1, 2, 7, 8, 9, 31, 127, 256, 257, 1023, 1279, 1281, 3333):
            x, g = tensor("normal", n, dtype), tensor("normal", n, dtype, 1)
            compare(name, monkeypatch, x, None, ef=False, misaligned=bool(n % 2))
            compare(name, monkeypatch, x, None, misaligned=not n % 2)
            compare(name, monkeypatch, x, g, misaligned=bool(n % 2))
            compare(name, monkeypatch, x, g, beta=0.9, gamma=0.3, ef=False)
            compare(name, monkeypatch, x, g, beta=0.9, gamma=0.3, misaligned=True)
    finally:
        native.set_isa("")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("isa", ["baseline", "avx2"])
@pytest.mark.parametrize("kind", ["zeros", "sparse", "subnormal", "smallest", "huge", "wide"])
def test_extreme_values(name, dtype, isa, kind, monkeypatch):
    if not native.set_isa(isa):
        pytest.skip(f"this processor has no {isa}")
    try:
        for n in (1, 300, 2571):
            x = tensor(kind, n, dtype)
            compare(name, monkeypatch, x, None)
            compare(name, monkeypatch, torch.zeros_like(x), x)
    finally:
        native.set_isa("")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads(name, threads, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        n = 200_003
        compare(
            name,
            monkeypatch,
            tensor("normal", n, torch.float32),
            tensor("sparse", n, torch.float32, 1),
        )
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("isa", ["baseline", "avx2"])
@pytest.mark.parametrize("voters", [1, 2, 3, 4, 5, 8, 17])
def test_votes(dtype, isa, voters):
    if not native.set_isa(isa):
        pytest.skip(f"this processor has no {isa}")
    try:
        for n in (1, 8, 63, 64, 65, 1100):
            generator = torch.Generator().manual_seed(n)
            ballots = [
                torch.randint(0, 256, ((n + 7) // 8,), generator=generator).to(torch.uint8)
                for _ in range(voters)
            ]
            mine, theirs = torch.empty(n, dtype=dtype), torch.empty(n, dtype=dtype)
            K.sign_vote(mine, ballots, 0x1234_5678_9ABC_DEF0)
            R.sign_vote(theirs, ballots, 0x1234_5678_9ABC_DEF0)
            assert torch.equal(mine, theirs)
    finally:
        native.set_isa("")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_axpby(dtype):
    for n in (1, 1000, 70_001):
        x, g = tensor("normal", n, dtype), tensor("normal", n, dtype, 1)
        assert torch.equal(K.axpby_(x.clone(), g, 0.9, 0.1), R.axpby_(x.clone(), g, 0.9, 0.1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("isa", ["baseline", "avx2"])
def test_all_finite(dtype, isa):
    if not native.set_isa(isa):
        pytest.skip(f"this processor has no {isa}")
    try:
        x = torch.randn(70_003).to(dtype)
        x[5] = torch.finfo(dtype).max
        assert K.all_finite(x)
        for place in (0, 17, 40_000, 70_002):
            for value in (float("nan"), float("inf"), -float("inf")):
                y = x.clone()
                y[place] = value
                assert not K.all_finite(y)
        assert K.all_finite(x[:0])
        assert K.all_finite(torch.randn(10, 10).to(dtype).t())
    finally:
        native.set_isa("")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("isa", ["baseline", "avx2"])
def test_ordinary(dtype, isa):
    if not native.set_isa(isa):
        pytest.skip(f"this processor has no {isa}")
    limit = torch.tensor(LARGE[dtype], dtype=dtype)
    below = (
        torch.nextafter(limit.double(), torch.tensor(0.0, dtype=torch.float64))
        if dtype is torch.float64
        else limit * 0.99
    )
    try:
        x = torch.randn(70_003).to(dtype)
        x[5] = torch.finfo(dtype).max if dtype is torch.float16 else below
        assert K.ordinary(x) and R.ordinary(x)
        for place in (0, 17, 40_000, 70_002):
            for value in (float("nan"), float("inf"), float(limit), -float(limit)):
                y = x.clone()
                y[place] = value
                assert not K.ordinary(y) and not R.ordinary(y)
        assert K.ordinary(x[:0]) and R.ordinary(x[:0])
    finally:
        native.set_isa("")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("n", [0, 1, 1023, 70_003, 600_001])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_copies_and_averages(dtype, n, offset):
    """Small ones in the cache, large ones past it; wherever they begin, nothing beside them is touched."""
    x = torch.randn(n).to(dtype)
    room = torch.full((n + 20,), 7.0, dtype=dtype)
    out = room[offset : offset + n]
    pair = [out, torch.empty(3, dtype=dtype)], [x, torch.ones(3, dtype=dtype)]
    assert K.copy_finite_(*pair) == R.copy_finite_([out.clone(), pair[0][1]], pair[1]) == [True, True]
    assert (pair[0][1] == 1).all()
    assert torch.equal(out, x)
    K.average_(pair[0], pair[1:], 3.0)
    assert torch.equal(out, x / 3.0)
    assert torch.equal(pair[0][1], pair[1][1] / 3.0)
    ranks = [pair[1], [-2 * x, pair[1][1]], [0.3 * x, pair[1][1]]]
    expected = [out.clone(), pair[0][1].clone()]
    K.average_(pair[0], ranks, 3.0)
    R.average_(expected, ranks, 3.0)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(pair[0], expected))
    assert (room[:offset] == 7).all()
    assert (room[offset + n :] == 7).all()
    if n:
        x[n // 2] = float("nan")
        assert K.copy_finite_(*pair) == R.copy_finite_(*pair) == [False, True]


def test_draws_cross_the_32_bit_boundary():
    """Index arithmetic of the two backends agrees where indices no longer fit 32 bits."""
    known = draws(0x0123_4567_89AB_CDEF, torch.tensor([0, 2**32 - 1, 2**32, 2**40 + 5])).tolist()
    assert known == [scalar_draw(0x0123_4567_89AB_CDEF, i) for i in (0, 2**32 - 1, 2**32, 2**40 + 5)]


def scalar_draw(word: int, i: int) -> int:
    mask = 0xFFFFFFFF

    def mix(h):
        h ^= h >> 16
        h = h * 0x7FEB352D & mask
        h ^= h >> 15
        h = h * 0x846CA68B & mask
        return h ^ h >> 16

    start, stride = word & mask, word >> 32 | 1
    return mix((i & mask) * stride + start + (i >> 32) * 0x9E3779B9 & mask)


def test_wrong_tensors_are_refused():
    from grace_dl.errors import PayloadError, UnsupportedError

    x, code, scale = torch.randn(512), torch.empty(512, dtype=torch.uint8), torch.empty(2)
    with pytest.raises(PayloadError):
        K.fp8_encode(Source(x), 256, code[:-1], scale)
    with pytest.raises(PayloadError):
        K.fp8_encode(Source(x), 256, code, scale.double())
    with pytest.raises(PayloadError):
        K.fp8_encode(Source(x), 256, torch.empty(1024, dtype=torch.uint8)[::2], scale)
    with pytest.raises(UnsupportedError):
        K.fp8_encode(Source(x, torch.randn(511)), 256, code, scale)
    with pytest.raises(UnsupportedError):
        K.fp8_encode(Source(torch.randn(1024)[::2]), 256, code, scale)
    with pytest.raises(UnsupportedError):
        K.fp8_encode(Source(x, x.double(), leave="residual"), 256, code, scale)
    with pytest.raises(UnsupportedError, match="compensated"):
        K.fp8_encode(Source(x, leave="compensated"), 256, code, scale)
