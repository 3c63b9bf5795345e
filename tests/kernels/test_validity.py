"""Checks of payloads: the same fault on every backend, and what passes decodes to finite numbers."""

from __future__ import annotations

import random

import pytest
import torch

from contract.cases import codec, gradients, key, one_rounds
from grace_dl.compressor.base import Context
from grace_dl.errors import PayloadError
from grace_dl.kernels import faults

SPECIAL = [bytes.fromhex(digits) for digits in ("0000c07f", "0000807f", "007c007c", "ffffffff", "ffffff7f")]


def found(method, payload, ctx, backend, monkeypatch):
    monkeypatch.setattr("grace_dl.kernels.forced", backend)
    return int(method.faults(payload, ctx))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", one_rounds())
def test_faults_agree_with_decoders_and_between_backends(name, dtype, monkeypatch):
    method, chance = codec(name), random.Random(name)
    (x,) = gradients(1, 1, (30, 50), dtype)[0]
    payload, _ = method.encode(x, key())
    ctx = Context(x.shape, dtype, key())
    refused = 0
    for trial in range(60):
        parts = [part.clone() for part in payload]
        data = [part.view(-1).view(torch.uint8) for part in parts if part.numel()]
        for _ in range(trial and chance.choice([1, 1, 3])):
            part = chance.choice(data)
            if chance.random() < 0.5 and part.numel() >= 4:
                at = 4 * chance.randrange(part.numel() // 4)
                part[at : at + 4] = torch.tensor(list(chance.choice(SPECIAL)), dtype=torch.uint8)
            else:
                part[chance.randrange(part.numel())] ^= 1 << chance.randrange(8)
        fault = found(method, parts, ctx, "reference", monkeypatch)
        assert (found(method, parts, ctx, "native", monkeypatch) == 0) == (fault == 0)
        out = torch.zeros(x.shape, dtype=dtype)
        if not fault:
            method.combine_(out, [parts], ctx)
            assert out.isfinite().all()
        elif fault not in (faults.VALUE_NOT_FINITE, faults.RESULT_NOT_FINITE):
            with pytest.raises(PayloadError):
                method.combine_(out, [parts], ctx)
        refused += bool(fault)
        assert trial or not fault
    assert refused < 60


@pytest.mark.parametrize("name", one_rounds())
def test_a_wrong_number_of_tensors_is_refused_everywhere(name):
    method = codec(name)
    (x,) = gradients(1, 1, (30, 50))[0]
    payload, _ = method.encode(x, key())
    ctx = Context(x.shape, x.dtype, key())
    for broken in ([], payload[:-1], [*payload, payload[-1]]):
        calls = [
            lambda broken=broken: method.faults(broken, ctx),
            lambda broken=broken: method.decompress(broken, ctx),
            lambda broken=broken: method.accumulate_(torch.zeros(30, 50), broken, ctx),
            lambda broken=broken: method.residual_(torch.zeros(30, 50), broken, ctx),
            lambda broken=broken: method.combine_(torch.zeros(30, 50), [broken], ctx),
        ]
        for call in calls:
            with pytest.raises(PayloadError):
                call()


def test_messages_are_those_of_the_compiled_module():
    native = pytest.importorskip("grace_dl._native")
    assert faults.MESSAGES[: len(native.FAULTS)] == native.FAULTS
