"""What test_triton.py runs in processes of their own: Triton decides at its import whether it interprets or compiles."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

import grace_dl.kernels
from grace_dl.errors import ConfigError, PayloadError, UnsupportedError
from grace_dl.kernels import Correction, Source, backend
from grace_dl.kernels.wire import Sampling, index_bytes
from grace_dl.key import Key
from grace_dl.methods.dgc import DgcCompressor
from grace_dl.methods.efsignsgd import EFSignSGDCompressor
from grace_dl.methods.fp8 import FP8Compressor
from grace_dl.methods.int4 import Int4Compressor
from grace_dl.methods.int8 import Int8Compressor
from grace_dl.methods.natural import NaturalCompressor
from grace_dl.methods.onebit import OneBitCompressor
from grace_dl.methods.qsgd import QSGDCompressor
from grace_dl.methods.randomk import RandomKCompressor
from grace_dl.methods.signsgd import SignSGDCompressor
from grace_dl.methods.signum import SignumCompressor
from grace_dl.methods.terngrad import TernGradCompressor
from grace_dl.methods.threshold import ThresholdCompressor
from grace_dl.methods.topk import TopKCompressor

METHODS = {
    "signsgd": SignSGDCompressor(),
    "signum": SignumCompressor(),
    "efsignsgd": EFSignSGDCompressor(),
    "onebit": OneBitCompressor(),
    "int8": Int8Compressor(),
    "int4": Int4Compressor(),
    "qsgd": QSGDCompressor(),
    "qsgd, max": QSGDCompressor(127, 512, "max"),
    "qsgd, 2 bits": QSGDCompressor(1, 100),
    "qsgd, 4 bits, odd bucket": QSGDCompressor(7, 33, "max"),
    "qsgd, 11 bits": QSGDCompressor(1000, 64),
    "qsgd, 16 bits": QSGDCompressor(32767, 2000),
    "qsgd, bucket of one": QSGDCompressor(3, 1),
    "qsgd, bucket too long for a program": QSGDCompressor(127, 10_000),
    "fp8": FP8Compressor(),
    "natural": NaturalCompressor(),
    "terngrad": TernGradCompressor(),
    "dgc": DgcCompressor(0.05, sample_ratio=0.1),
    "dgc, drawn sample, raised, float16": DgcCompressor(
        0.02, sample_ratio=0.2, strided_sample=False, resample=False, fp16_values=True
    ),
    "dgc, not adapted": DgcCompressor(0.3, sample_ratio=0.1, max_adaptation_iters=0),
    "dgc, all sampled": DgcCompressor(0.1, sample_ratio=1.0),
    "topk 1 %": TopKCompressor(0.01),
    "topk 5 %, bfloat16": TopKCompressor(0.05, "bfloat16"),
    "topk 30 %, float32": TopKCompressor(0.3, "float32"),
    "topk all": TopKCompressor(1.0),
    "threshold": ThresholdCompressor(1.5),
    "threshold, rare, float16": ThresholdCompressor(2.9, "float16"),
    "threshold, none": ThresholdCompressor(1e30),
    "threshold, all": ThresholdCompressor(0.0),
    "randomk": RandomKCompressor(0.1),
    "randomk, plain": RandomKCompressor(0.013, scaled=False),
}
LONGER = {"natural": (4500,), "dgc": (4500,)}
"""More than one block, or tiles enough for a threshold to be adapted."""

EXTREMES = ("zeros", "negative zeros", "ties", "sparse", "subnormal", "smallest", "huge", "wide")
WORD = 0x9234_5678_9ABC_DEF0


def tensor(kind: str, n: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Numbers of a kind that breaks careless arithmetic."""
    generator = torch.Generator().manual_seed(seed + n)
    x = torch.randn(n, dtype=dtype, generator=generator)
    tiny = torch.finfo(dtype).smallest_normal
    if kind == "zeros":
        return torch.zeros(n, dtype=dtype)
    if kind == "negative zeros":
        return -torch.zeros(n, dtype=dtype)
    if kind == "ties":
        return x.mul(2).round()
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


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def outcome(
    kernels: str, name: str, x: Any, g: Any, beta: float, gamma: float, ef: bool, offset: int
) -> list[Any]:
    """Payload, what became of x, what decoding adds, and the average of two, under one backend."""
    grace_dl.kernels.forced = kernels
    compressor = METHODS[name]
    n, key = x.numel(), Key("layer.weight", seed=7, step=3)
    mine = torch.empty(n + offset, dtype=x.dtype)[offset:].copy_(x)
    gradient = None if g is None else torch.empty(n + offset, dtype=x.dtype)[offset:].copy_(g)
    owed = torch.tensor([-0.3, 0.7], dtype=x.dtype)
    leave = compressor.leaves if ef else "input"
    payload, _ = compressor.encode_from(Source(mine, gradient, beta, gamma, leave, owed), key)
    mine = torch.cat([mine, owed])
    assert gradient is None or torch.equal(bits(gradient), bits(g))
    added = torch.empty(n + offset, dtype=x.dtype)[offset:].copy_(torch.linspace(-1, 1, n, dtype=x.dtype))
    ctx = compressor.encode(x[:0], key)[1]
    compressor.accumulate_(added, payload, ctx)
    combined = torch.ones_like(added)
    compressor.combine_(combined, [payload, payload], ctx)
    return [*payload, mine, added, combined]


def same(name: str, x: torch.Tensor, g: Any = None, beta=1.0, gamma=1.0, ef=True, offset=0) -> None:
    mine, theirs = (outcome(k, name, x, g, beta, gamma, ef, offset) for k in ("triton", "reference"))
    for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        assert one.dtype == other.dtype and torch.equal(bits(one), bits(other)), (name, x.numel(), place)


def sizes(name: str, dtype: torch.dtype) -> None:
    for n in (1, 9, 255, 1281, *LONGER.get(name, ())):
        x, g = tensor("normal", n, dtype), tensor("normal", n, dtype, 1)
        same(name, x, ef=False, offset=n % 2)
        same(name, x, g, offset=1 - n % 2)
        same(name, x, g, 0.9, 0.3, offset=1)


def extremes(name: str, dtype: torch.dtype) -> None:
    for kind in EXTREMES:
        same(name, tensor(kind, 2048, dtype))
        x = tensor(kind, 301, dtype)
        same(name, torch.zeros_like(x), x)


def votes(dtype: torch.dtype) -> None:
    mine, theirs = backend("triton", "cpu"), backend("reference", "cpu")
    for voters in (0, 1, 2, 3, 8):
        for n in (1, 65, 1100):
            generator = torch.Generator().manual_seed(n)
            ballots = [
                torch.randint(0, 256, ((n + 7) // 8,), generator=generator).to(torch.uint8)
                for _ in range(voters)
            ]
            one, other = torch.empty(n, dtype=dtype), torch.empty(n, dtype=dtype)
            mine.sign_vote(one, ballots, WORD)
            theirs.sign_vote(other, ballots, WORD)
            assert torch.equal(one, other)


def generator() -> None:
    """Draws agree where indices no longer fit 32 bits, too."""
    mine, theirs = backend("triton", "cpu"), backend("reference", "cpu")
    for dtype in (torch.float32, torch.float64):
        like = torch.empty(1, dtype=dtype)
        for word in (0, 1, WORD, 2**64 - 1):
            for begin in (0, 2**31 - 100, 2**32 - 100, 2**40 + 5):
                assert torch.equal(
                    mine.uniforms(word, 1100, like, begin), theirs.uniforms(word, 1100, like, begin)
                )


def forming() -> None:
    mine, theirs = backend("triton", "cpu"), backend("reference", "cpu")
    for dtype in (torch.float32, torch.float64):
        for n in (1, 1000, 3333):
            x, g = tensor("wide", n, dtype), tensor("wide", n, dtype, 1)
            assert torch.equal(mine.axpby_(x.clone(), g, 0.9, 0.1), theirs.axpby_(x.clone(), g, 0.9, 0.1))


def buckets(name: str, dtype: torch.dtype) -> None:
    """The tensors of a bucket are decoded at once as one by one, for any number of ranks."""
    compressor, generator = METHODS[name], torch.Generator().manual_seed(3)
    for ranks in (1, 3):
        outs, payloads, ctxs = [], [], []
        for place, n in enumerate((1, 2571, 9, 1024)):
            key = Key(f"layer{place}", seed=7, step=3)
            grads = [torch.randn(n, dtype=dtype, generator=generator) for _ in range(ranks)]
            grads[-1] *= place != 2  # all zero
            encoded = [compressor.encode(grad, key) for grad in grads]
            outs.append(torch.ones(n, dtype=dtype))
            payloads.append([payload for payload, _ in encoded])
            ctxs.append(encoded[0][1])
        results = []
        for kernels in ("triton", "reference"):
            grace_dl.kernels.forced = kernels
            mine = [out.clone() for out in outs]
            compressor.combine_all_(mine, payloads, ctxs)
            results.append(torch.cat(mine))
        assert torch.equal(bits(results[0]), bits(results[1])), (name, ranks)


def committing(dtype: torch.dtype) -> None:
    """What DGC sent is taken from its state: announced entries only, whatever the code of the indices."""
    for ratio in (0.001, 0.05, 0.4):
        compressor = DgcCompressor(ratio)
        states, sent = [], []
        for place, n in enumerate((1, 900, 5000)):
            payload, _ = compressor.encode(tensor("sparse", n, dtype), Key("w", step=place))
            states.append((tensor("normal", n, dtype, 1), tensor("normal", n, dtype, 2)))
            sent.append((payload[0], payload[1], payload[2]))
        results = []
        for kernels in ("triton", "reference"):
            vs, ms = [v.clone() for v, _ in states], [m.clone() for _, m in states]
            backend(kernels, "cpu").dgc_commit_(vs, ms, sent)
            results.append(torch.cat([*vs, *ms]))
        assert torch.equal(bits(results[0]), bits(results[1])), ratio


def correcting(dtype: torch.dtype) -> None:
    """Momentum correction, one state or a bucket of them; refused gradients and broken payloads change one state only."""
    sizes, k = (1, 900, 5000, 900, 2100), 9
    for nesterov, mu in ((False, 0.9), (True, 0.9), (True, 0.0)):
        results = []
        for kernels in ("triton", "reference"):
            K = backend(kernels, "cpu")
            states, payloads, samplings = [], [], []
            for place, n in enumerate(sizes):
                m, v, g = (tensor("normal", n, dtype, seed) for seed in (place, 10 + place, 20 + place))
                g[0] = 1e3 if place == 1 else float("nan") if place == 4 else g[0]
                limit = 512.0 if place == 1 else float("inf")
                states.append(Correction(m, v, g, 0.37 if place else 1.0, limit))
                size = index_bytes(n, min(n, k)) if place != 3 else 3  # too few bytes
                payloads.append(
                    [
                        torch.empty(min(n, k), dtype=dtype),
                        torch.empty(size, dtype=torch.uint8),
                        torch.full((1,), -1, dtype=torch.int32),
                    ]
                )
                samplings.append(Sampling(min(n, 5), max(1, n // 5), 0, 5, WORD, 0.8, 1.3, 4, nesterov))
            found: list[object] = []
            steps = K.dgc_step_(states, mu, nesterov, samplings, payloads)
            for _ in sizes:
                try:
                    found.append(next(steps))
                except (PayloadError, RuntimeError):  # the reference is told by torch
                    found.append(None)
            assert found == [True, False, True, None, False], found
            assert next(steps, None) is None
            K.dgc_correct_(states[0], mu, nesterov)
            parts = [part for place in (0, 2) for part in payloads[place]]
            means = [tensor("normal", n, dtype) for n in (3, 70, 1100)]
            means[1][5] = float("inf")
            momenta = [tensor("normal", mean.numel(), dtype, 1) for mean in means]
            assert K.dgc_dense_(means, momenta, mu, nesterov) == [True, False, True]
            half, momentum = tensor("normal", 3, torch.float32).half(), momenta[0].clone()
            assert K.dgc_dense_([half], [momentum], mu, nesterov) == [True]
            kept = [tensor for m, v, *_ in states for tensor in (m, v)]
            results.append(torch.cat([bits(x) for x in (*kept, *parts, *means, *momenta, half, momentum)]))
        assert torch.equal(results[0], results[1]), (nesterov, mu)


def coding() -> None:
    """Sorted indices, fewer than announced ones too, in both codes."""
    mine, theirs = backend("triton", "cpu"), backend("reference", "cpu")
    for d, k in ((1, 1), (9, 2), (16, 8), (1000, 1000), (1500, 40), (70_000, 3), (70_000, 1300)):
        generator = torch.Generator().manual_seed(d + k)
        for given in {0, 1, k - 1, k}:
            indices = torch.randperm(d, generator=generator)[:given].sort().values
            one, other = (torch.full((index_bytes(d, k),), 99, dtype=torch.uint8) for _ in range(2))
            mine.encode_indices(indices, d, k, one)
            theirs.encode_indices(indices, d, k, other)
            assert torch.equal(one, other), (d, k, given)


def refuses(error: type[Exception], call: Callable[..., object], out: torch.Tensor, *arguments: Any) -> None:
    """The call raises and leaves `out` as it was."""
    before = out.clone()
    try:
        call(out, *arguments)
    except error:
        assert torch.equal(out, before)
    else:
        raise AssertionError(f"{call.__name__} took what it should refuse")


def broken() -> None:
    """Damaged payloads and wrong tensors are refused before anything is written."""
    K, n = backend("triton", "cpu"), 1500
    out, codes, scales = torch.randn(n), torch.full((n,), 127, dtype=torch.uint8), torch.ones(6)
    K.block_add(out, codes, scales, 256, 127, 8)
    for value in (-1.0, float("inf"), float("nan")):
        spoiled = scales.clone()
        spoiled[5] = value
        refuses(PayloadError, K.block_add, out, codes, spoiled, 256, 127, 8)
    spoiled = codes.clone()
    spoiled[-1] = 255
    refuses(PayloadError, K.block_add, out, spoiled, scales, 256, 127, 8)
    refuses(PayloadError, K.block_add, out, codes[:-1], scales, 256, 127, 8)
    refuses(PayloadError, K.block_add, out, codes, scales.double(), 256, 127, 8)
    signs, one = torch.zeros(188, dtype=torch.uint8), torch.ones(1, dtype=torch.uint8)
    refuses(PayloadError, K.sign_add, out, signs, one * 2)
    refuses(PayloadError, K.sign_add, out, signs[:-1], one)
    refuses(PayloadError, K.scaled_sign_add, out, signs, torch.tensor([-1.0]))
    refuses(PayloadError, K.onebit_add, out, signs, torch.tensor([1.0, 1.0]))
    few = torch.zeros(300, dtype=torch.uint8)  # five elements a byte
    refuses(PayloadError, K.ternary_add, out, few[:-1], torch.ones(1))
    refuses(PayloadError, K.ternary_add, out, few + 243, torch.ones(1))
    refuses(PayloadError, K.ternary_add, out, few, torch.tensor([float("nan")]))
    refuses(PayloadError, K.fp8_add, out, codes, scales * -1, 256)
    refuses(PayloadError, K.fp8_add, out, codes[1:], scales, 256)
    refuses(PayloadError, K.fp8_add, out, codes * 0 + 255, scales, 256)
    bases = torch.zeros(1, dtype=torch.int16)
    refuses(PayloadError, K.natural_add, out, codes, bases + 128)
    refuses(PayloadError, K.natural_add, out, codes, bases.to(torch.int32))
    values, index = torch.ones(15), torch.full((index_bytes(n, 15),), 255, dtype=torch.uint8)
    refuses(PayloadError, K.sparse_add, out, values, index)
    refuses(PayloadError, K.sparse_add, out, values, index * 0)
    refuses(PayloadError, K.sparse_add, out, values, index[:-1])

    def combined(call: Callable[..., None], first: Any, second: Any, *more: Any) -> None:
        """Two tensors at once: the second payload is broken."""
        try:
            call([torch.empty(n), torch.empty(n)], [[first], [second]], *more)
        except PayloadError:
            return
        raise AssertionError(f"{call.__name__} took what it should refuse")

    spoiled = codes.clone()
    spoiled[-1] = 255
    combined(K.block_combine_, (codes, scales), (spoiled, scales), 1.0, 256, 127, 8)
    combined(K.sign_combine_, (signs, one), (signs, one * 2), [0, 0])
    means, scale = torch.tensor([-1.0, 1.0]), torch.ones(1)
    combined(K.ternary_combine_, (few, scale), (few, -scale), 1.0)
    combined(K.fp8_combine_, (codes * 0, scales), (codes, scales), 1.0, 256)
    combined(K.natural_combine_, (codes, bases), (codes, bases - 149), 1.0)
    combined(K.onebit_combine_, (signs, means), (signs, -means), 1.0)
    combined(K.scaled_sign_combine_, (signs, scale), (signs, -scale), 1.0)
    good = METHODS["topk 1 %"].encode(tensor("normal", n, torch.float32), Key("w"))[0]
    combined(K.sparse_combine_, (*good, None), (values, index, None), 1.0)

    def sign_encode(x: torch.Tensor, g: torch.Tensor | None, *payload: torch.Tensor) -> None:
        K.sign_encode(Source(x, g), 0, *payload)

    refuses(UnsupportedError, sign_encode, out, out[1:].clone(), signs, one)
    refuses(UnsupportedError, sign_encode, out, out.double(), signs, one)
    refuses(UnsupportedError, sign_encode, torch.randn(2 * n)[::2], None, signs, one)


def empty() -> None:
    K = backend("triton", "cpu")
    x, none = torch.empty(0), torch.empty(0, dtype=torch.uint8)
    flag = torch.ones(1, dtype=torch.uint8)
    K.sign_encode(Source(x), 0, none, flag)
    assert not flag.item()
    K.block_encode(Source(x, leave="residual"), 256, 127, 8, "max", 0, none, x)
    K.block_add(x, none, x, 256, 127, 8)


def refused_on_the_cpu() -> None:
    """Without the interpreter, a tensor on the CPU is refused when the backend is chosen."""
    try:
        backend("triton", "cpu")
    except ConfigError as error:
        assert "TRITON_INTERPRET=1" in str(error) and "unset GRACE_KERNELS" in str(error)
    else:
        raise AssertionError("a backend that cannot run was given out")
    assert backend("", "cuda").__name__ == "grace_dl.kernels.triton"
    assert backend("triton", "cuda").__name__ == "grace_dl.kernels.triton"


TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.uint8: "*u8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


def compiled(dtype: torch.dtype, n: int) -> None:
    """Compile all that is launched for `n` elements, for a GPU that need not be there, and read the assembly."""
    texts = compiling()
    launch_dense(dtype, n)
    launch_sparse(dtype, n)
    launch_buckets(dtype, n)
    assert len(texts) > 35
    division = "div.rn.f64" if dtype is torch.float64 else "div.rn.f32"
    for name, text in texts.items():
        # Products and sums apart, divisions and roots correctly rounded, narrowing to nearest.
        assert not re.search(r"\bfma\.|\bmad\.[a-z.]*f(32|64)|approx|\bdiv\.full", text), name
        # Only floor may take subnormal numbers for zero: it is given none below zero, and zero is their floor.
        assert "ftz" not in text.replace("cvt.rmi.ftz.f32.f32", ""), name
        if name.startswith(("block_encode", "fp8_encode")) or "quantised" in name or "'DIVIDE': True" in name:
            assert division in text, name
        if "'L2': True" in name or name.startswith("ternary_encode"):
            assert "sqrt.rn.f64" in text, name


def compiling() -> dict[str, str]:
    """From here on launches only compile, into the assembly in this dictionary."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    import grace_dl.kernels.triton as package
    from grace_dl.kernels.triton import launch

    texts: dict[str, str] = {}

    def run(kernel: Any, grid: object, x: torch.Tensor, *arguments: Any, **constants: Any) -> None:
        signature, fixed = {}, dict(constants)
        for parameter, argument in zip(kernel.params, arguments):
            if isinstance(argument, torch.Tensor):
                signature[parameter.name] = TYPES[argument.dtype]
            elif argument == 1 and not parameter.do_not_specialize:
                # As a launch does it: an argument of 1 is compiled in.
                fixed[parameter.name] = 1
            else:
                signature[parameter.name] = "i32" if -(2**31) <= argument < 2**31 else "i64"
        signature |= dict.fromkeys(fixed, "constexpr")
        options = {"enable_fp_fusion": False}
        built = triton.compile(
            ASTSource(kernel, signature, constexprs=fixed), target=GPUTarget("cuda", 80, 32), options=options
        )
        shown = {name: getattr(value, "__name__", value) for name, value in constants.items()}
        texts[f"{kernel.__name__} {shown}"] = built.asm["ptx"]

    launch.INTERPRETED = True  # nothing is launched
    for module in vars(package).values():
        if isinstance(module, ModuleType) and "run" in vars(module):
            vars(module)["run"] = run
    return texts


def launch_dense(dtype: torch.dtype, n: int) -> None:
    from grace_dl.kernels.triton import basic, blocks, cast, randomness, signs, tables, ternary

    x, g = torch.randn(n, dtype=dtype), torch.randn(n, dtype=dtype)
    source = Source(x, g, 0.9, 0.3, "residual")
    packed, one = torch.zeros((n + 7) // 8, dtype=torch.uint8), torch.ones(1, dtype=torch.uint8)
    basic.axpby_(x, g, 0.9, 0.3)
    randomness.uniforms(WORD, n, x)
    signs.sign_encode(source._replace(leave="compensated"), WORD, packed, one.clone())
    signs.sign_add(x, packed, one)
    signs.sign_vote(x, [packed, packed], WORD)
    for encode, add, count in (
        (signs.scaled_sign_encode, signs.scaled_sign_add, 1),
        (signs.onebit_encode, signs.onebit_add, 2),
    ):
        deferred = source._replace(leave="deferred", owed=torch.zeros(2, dtype=dtype))
        encode(deferred, packed, torch.zeros(count, dtype=dtype))
        add(x, packed, torch.zeros(count, dtype=dtype))
    for block, levels, norm in ((256, 7, "max"), (128, 127, "l2"), (33, 1000, "max")):
        width = (2 * levels).bit_length()
        codes = torch.zeros((n * width + 7) // 8, dtype=torch.uint8)
        scales = torch.zeros(-(-n // block), dtype=dtype)
        blocks.block_encode(source, block, levels, width, norm, WORD, codes, scales)
        blocks.block_add(x, codes, scales, block, levels, width)
    codes, scales = torch.zeros(n, dtype=torch.uint8), torch.zeros(-(-n // 256), dtype=dtype)
    cast.fp8_encode(source, 256, codes, scales)
    cast.fp8_add(x, codes, scales, 256)
    bases = torch.zeros(-(-n // 4096), dtype=torch.int16)
    tables.natural_encode(source, WORD, codes, bases)
    tables.natural_add(x, codes, bases)
    trits, scale = torch.zeros(-(-n // 5), dtype=torch.uint8), torch.zeros(1, dtype=dtype)
    ternary.ternary_encode(source, 2.5, WORD, trits, scale)
    ternary.ternary_add(x, trits, scale)


def launch_sparse(dtype: torch.dtype, n: int) -> None:
    from grace_dl.kernels.triton import dgc, sparse

    x, g, k = torch.randn(n, dtype=dtype), torch.randn(n, dtype=dtype), max(1, n // 100)
    source = Source(x, g, 0.9, 0.3, "residual")
    values, index = torch.zeros(k, dtype=dtype), torch.zeros(index_bytes(n, k), dtype=torch.uint8)
    sparse.topk_encode(source, k, values, index)
    sparse.randomk_encode(source, WORD, True, values)
    sparse.randomk_add(x, values, WORD, 0.3)
    count = torch.zeros(1, dtype=torch.int32)
    for stride, read in ((0, source), (3, source._replace(leave="input"))):
        sampling = Sampling(1, max(1, n // 3), 0, stride, WORD, 0.8, 1.3, 2, True)
        dgc.dgc_encode(read, k, sampling, values, index, count)


def launch_buckets(dtype: torch.dtype, n: int) -> None:
    from grace_dl.kernels.triton import blocks, cast, dgc, signs, sparse, tables, ternary

    x, m, v = (torch.randn(n, dtype=dtype) for _ in range(3))
    for nesterov in (False, True):
        dgc.dgc_correct_(Correction(m, v, x, 0.3), 0.9, nesterov)
        dgc.dgc_dense_([x], [m], 0.9, nesterov)
    values, index = TopKCompressor(0.01).encode(torch.randn(n), Key("w"))[0]
    for kind in (dtype, torch.bfloat16):
        sent = (values.to(kind), index, None)
        sparse.sparse_combine_([x, v], [[sent, sent], [sent, sent]], 0.5)
        sparse.dgc_commit_([v], [m], [sent])
    packed, one = torch.zeros((n + 7) // 8, dtype=torch.uint8), torch.ones(1, dtype=torch.uint8)
    codes, bases = torch.zeros(n, dtype=torch.uint8), torch.zeros(-(-n // 4096), dtype=torch.int16)
    scales, trits = torch.zeros(-(-n // 256), dtype=dtype), torch.zeros(-(-n // 5), dtype=torch.uint8)
    means = torch.zeros(2, dtype=dtype)

    def twice(*parts: torch.Tensor) -> list[list[tuple[torch.Tensor, ...]]]:
        return [[parts, parts], [parts, parts]]

    outs = [x, v]
    signs.sign_combine_(outs, twice(packed, one), [0, 1])
    signs.scaled_sign_combine_(outs, twice(packed, means[:1]), 2.0)
    signs.onebit_combine_(outs, twice(packed, means), 2.0)
    blocks.block_combine_(outs, twice(codes, scales), 2.0, 256, 127, 8)
    cast.fp8_combine_(outs, twice(codes, scales), 2.0, 256)
    tables.natural_combine_(outs, twice(codes, bases), 2.0)
    ternary.ternary_combine_(outs, twice(trits, means[:1]), 2.0)
