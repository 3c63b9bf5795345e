"""Bytes from a peer decode to a valid tensor or to a clear error, never to a crash."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_dl.catalog import info as method
from grace_dl.errors import PayloadError
from grace_dl.key import Key
from grace_dl.methods.qsgd import QSGDCompressor

NAMES = [
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
    "signsgd",
    "efsignsgd",
]


@pytest.fixture(params=["native", "reference"])
def kernels(request, monkeypatch):
    if request.param == "native":
        pytest.importorskip("grace_dl._native", reason="the compiled kernels are not installed")
    monkeypatch.setattr("grace_dl.kernels.forced", request.param)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", NAMES)
def test_wrong_sizes_and_dtypes(name):
    compressor = method(name).cls()
    payload, ctx = compressor.encode(torch.randn(1000), Key("w"))
    out = torch.zeros(1000)
    for place, part in enumerate(payload):
        for wrong in (part[:-1], torch.cat([part, part[:1]]), part.to(torch.int64)):
            broken = [*payload[:place], wrong, *payload[place + 1 :]]
            with pytest.raises(PayloadError):
                compressor.accumulate_(out, broken, ctx)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("fp8", 1, math.nan),
        ("fp8", 1, -1.0),
        ("fp8", 1, 3e38),
        ("fp8", 0, 0x7F),
        ("int8", 1, math.inf),
        ("int8", 0, 255),
        ("int4", 0, 0xF0),
        ("int4", 1, -0.5),
        ("qsgd", 1, math.nan),
        ("u8bit", 1, math.nan),
        ("u8bit", 1, -1.0),
        ("natural", 1, 128),
        ("natural", 1, -(2**15)),
        ("terngrad", 0, 243),
        ("terngrad", 1, math.inf),
        ("onebit", 1, math.nan),
        ("onebit", 1, -1.0),
        ("onebit", 1, 1.0),
        ("signsgd", 1, 2),
        ("efsignsgd", 1, -math.inf),
        ("efsignsgd", 1, -1.0),
    ],
)
def test_values_no_encoder_writes(name, place, value):
    compressor = method(name).cls()
    payload, ctx = compressor.encode(torch.randn(1000), Key("w"))
    payload[place].fill_(value)
    with pytest.raises(PayloadError):
        compressor.accumulate_(torch.zeros(1000), payload, ctx)


@pytest.mark.usefixtures("kernels")
def test_codes_of_odd_widths():
    compressor = QSGDCompressor(5, 30)
    payload, ctx = compressor.encode(torch.randn(101), Key("w"))
    payload[0].fill_(255)
    with pytest.raises(PayloadError):
        compressor.accumulate_(torch.zeros(101), payload, ctx)


@pytest.mark.parametrize("kind", ["native", "reference"])
@given(name=st.sampled_from(NAMES[2:]), n=st.integers(1, 400), wide=st.booleans(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_random_bytes(kind, name, n, wide, data):
    if kind == "native":
        pytest.importorskip("grace_dl._native", reason="the compiled kernels are not installed")
    dtype = torch.float64 if wide else torch.float32
    compressor = method(name).cls()
    payload = []
    for part, count in compressor.spec(n, dtype):
        size = count * part.itemsize
        raw = data.draw(st.binary(min_size=size, max_size=size))
        payload.append(torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(part))
    out = torch.zeros(n, dtype=dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grace_dl.kernels.forced", kind)
        try:
            compressor.accumulate_(out, payload, None)
        except PayloadError:
            return
    assert torch.isfinite(out).all()
