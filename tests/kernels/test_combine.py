"""Decoding the payloads of all ranks in one call gives the bits of decoding them one after another."""

from __future__ import annotations

import pytest
import torch

from grace_dl.compressor.base import Compressor, Context
from grace_dl.compressor.codec import Codec
from grace_dl.errors import PayloadError
from grace_dl.key import Key
from grace_dl.methods.dgc import DgcCompressor
from grace_dl.methods.efsignsgd import EFSignSGDCompressor
from grace_dl.methods.fp8 import FP8Compressor
from grace_dl.methods.int4 import Int4Compressor
from grace_dl.methods.int8 import Int8Compressor
from grace_dl.methods.natural import NaturalCompressor
from grace_dl.methods.onebit import OneBitCompressor
from grace_dl.methods.qsgd import QSGDCompressor
from grace_dl.methods.signsgd import SignSGDCompressor
from grace_dl.methods.terngrad import TernGradCompressor
from grace_dl.methods.threshold import ThresholdCompressor
from grace_dl.methods.topk import TopKCompressor
from grace_dl.methods.u8bit import U8bitCompressor

native = pytest.importorskip("grace_dl._native", reason="the compiled kernels are not installed")

METHODS: dict[str, Codec] = {
    "int8": Int8Compressor(),
    "int4": Int4Compressor(),
    "qsgd": QSGDCompressor(),
    "qsgd 5 bits, odd bucket": QSGDCompressor(11, 33, "max"),
    "fp8": FP8Compressor(),
    "u8bit": U8bitCompressor(),
    "natural": NaturalCompressor(),
    "terngrad": TernGradCompressor(),
    "efsignsgd": EFSignSGDCompressor(),
    "onebit": OneBitCompressor(),
    "signsgd": SignSGDCompressor(),
    "topk 0.1 %": TopKCompressor(0.001),
    "topk 5 %, bfloat16": TopKCompressor(0.05, "bfloat16"),
    "topk 40 %, a bitmap": TopKCompressor(0.4),
    "dgc": DgcCompressor(0.01),
    "threshold, another number on each rank": ThresholdCompressor(2.0),
    "threshold, none": ThresholdCompressor(1e30),
}


def sent(compressor: Codec, ranks: int, sizes: list[int], dtype: torch.dtype):
    """The payloads of all ranks by tensor, and their contexts."""
    payloads, ctxs = [], []
    for place, n in enumerate(sizes):
        of_ranks = []
        for rank in range(ranks):
            generator = torch.Generator().manual_seed(97 * rank + place)
            x = torch.randn(n, dtype=dtype, generator=generator) * (1 + rank)
            payload, _ = compressor.encode(x, Key(f"p{place}", 3, 2, rank, ranks))
            of_ranks.append(payload)
        payloads.append(of_ranks)
        ctxs.append(Context(torch.Size([n]), dtype, Key(f"p{place}", 3, 2, 0, ranks)))
    return payloads, ctxs


def one_by_one(compressor: Codec, payloads, ctx: Context) -> torch.Tensor:
    """What a loop over the ranks gives, with the reference's decoder of one payload."""
    out = torch.empty(ctx.numel, dtype=ctx.dtype)
    Compressor.combine_(compressor, out, payloads, ctx)
    return out


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def combined(compressor, payloads, ctxs, dtype, offset=0):
    rooms = [torch.full((ctx.numel + offset,), 7.5, dtype=dtype) for ctx in ctxs]
    outs = [room[offset:] for room in rooms]
    compressor.combine_all_(outs, payloads, ctxs)
    assert all(room[:offset].eq(7.5).all() for room in rooms)
    return outs


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("isa", ["baseline", "avx2"])
def test_one_call_for_all_ranks_is_the_sum_in_their_order(name, dtype, isa, monkeypatch):
    if not native.set_isa(isa):
        pytest.skip(f"this processor has no {isa}")
    compressor, threads = METHODS[name], torch.get_num_threads()
    try:
        # Several ranges, a last one that is not full, and sizes below one byte of codes.
        for ranks, sizes in ((1, [1281]), (2, [70001, 1]), (5, [33, 0, 40000]), (64, [300])):
            monkeypatch.setattr("grace_dl.kernels.forced", "native")
            payloads, ctxs = sent(compressor, ranks, sizes, dtype)
            found = []
            for number, offset in ((1, 0), (3, 1), (2, 3)):
                torch.set_num_threads(number)
                found.append(combined(compressor, payloads, ctxs, dtype, offset))
            torch.set_num_threads(threads)
            monkeypatch.setattr("grace_dl.kernels.forced", "reference")
            wanted = combined(compressor, payloads, ctxs, dtype)
            for outs in found:
                for one, other in zip(outs, wanted, strict=True):
                    assert torch.equal(bits(one), bits(other))
            if name == "signsgd" or isinstance(
                compressor, ThresholdCompressor | TopKCompressor | DgcCompressor
            ):
                continue  # a vote, and products instead of a quotient
            for one, of_ranks, ctx in zip(wanted, payloads, ctxs, strict=True):
                assert torch.equal(bits(one), bits(one_by_one(compressor, of_ranks, ctx)))
    finally:
        torch.set_num_threads(threads)
        native.set_isa("")


@pytest.mark.parametrize("name", [name for name in METHODS if name != "threshold, none"])
@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_a_broken_payload_of_any_rank_is_reported(name, kernels, monkeypatch):
    place = 0 if name in ("int8", "int4", "fp8") else 1
    # An exponent beyond the range; otherwise NaN, or codes and bits that no encoder writes.
    value = 127 if name == "natural" else 255
    monkeypatch.setattr("grace_dl.kernels.forced", kernels)
    compressor = METHODS[name]
    for bad in range(3):
        payloads, ctxs = sent(compressor, 3, [5000], torch.float32)
        part = payloads[0][bad][place]
        part.view(-1).view(torch.uint8)[:] = value
        with pytest.raises(PayloadError):
            combined(compressor, payloads, ctxs, torch.float32)


@pytest.mark.parametrize("name", METHODS)
def test_a_tensor_of_another_size_is_refused(name):
    payloads, ctxs = sent(METHODS[name], 3, [5000], torch.float32)
    payloads[0][2] = [part[:-1] if part.numel() > 1 else part.repeat(2) for part in payloads[0][2]]
    if all(part.numel() == 0 for part in payloads[0][2]):
        pytest.skip("it holds nothing")
    with pytest.raises(PayloadError):
        combined(METHODS[name], payloads, ctxs, torch.float32)


@pytest.mark.parametrize("name", METHODS)
def test_all_ranks_are_decoded_by_one_compiled_call(name, monkeypatch):
    """Among many ranks a pass for each would read and write the result as often as there are ranks."""
    calls: list[str] = []
    for function in dir(native):
        original = getattr(native, function)
        if callable(original) and function.endswith(("_add", "_combine", "_vote")):

            def counted(*arguments, function=function, original=original):
                calls.append(function)
                return original(*arguments)

            monkeypatch.setattr(native, function, counted)
    payloads, ctxs = sent(METHODS[name], 16, [5000], torch.float32)
    calls.clear()
    combined(METHODS[name], payloads, ctxs, torch.float32)
    METHODS[name].combine_(torch.empty(5000), payloads[0], ctxs[0])
    assert len(calls) == 2, calls
