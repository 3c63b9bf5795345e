"""What chunk top-k must compute, by hand, and what SparseLoCo makes of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import grace_dl as grace
from contract.cases import bits_equal
from grace_dl.errors import ConfigError, PayloadError
from grace_dl.kernels import Source
from grace_dl.key import Key
from grace_dl.methods.chunktopk import ChunkTopKCompressor


def decoded(compressor: ChunkTopKCompressor, x: torch.Tensor) -> torch.Tensor:
    return compressor.decompress(*compressor.compress(x, "w"))


def test_each_chunk_sends_its_largest_as_means_of_bins():
    x = torch.zeros(128)
    x[[3, 10, 20, 63]] = torch.tensor([4.0, -4.0, 8.0, 1.0])
    x[[64, 100]] = torch.tensor([-0.5, 0.25])
    out = decoded(ChunkTopKCompressor(kept=3, chunk=64, bits=2), x)
    expected = torch.zeros(128)
    expected[[3, 10, 20]] = torch.tensor([4.0, -4.0, 8.0])  # bins [4, 6) and [6, 8]
    expected[[64, 100]] = torch.tensor([-0.375, 0.375])  # both in the upper bin; a zero is the third
    assert torch.equal(out, expected)


def test_of_equal_magnitudes_the_first_are_sent():
    out = decoded(ChunkTopKCompressor(kept=5, chunk=64, bits=1), torch.full((200,), -2.0))
    sent = out.nonzero().view(-1).tolist()
    # The last 8 elements are a chunk of their own, which sends the same share of them.
    assert sent == [*range(5), *range(64, 69), *range(128, 133), 192]
    assert (out[sent] == -2).all()


def test_signs_alone_decode_to_one_mean():
    out = decoded(ChunkTopKCompressor(kept=2, chunk=64, bits=1), torch.tensor([3.0, -1.0, 0.5] + 61 * [0.0]))
    assert out[:2].tolist() == [2.0, -2.0] and not out[2:].any()


def test_wire_size():
    method = grace.chunktopk()
    assert method == grace.parse("chunktopk:64") == grace.chunktopk(kept=64, chunk=4096, bits=2)
    assert 8 * ChunkTopKCompressor().payload_bytes(25_000_000) / 25_000_000 <= 0.23  # type: ignore[operator]


def test_nothing_is_lost_under_error_feedback():
    torch.manual_seed(0)
    e, g = torch.randn(10_000), torch.randn(10_000)
    before, compressor = e + g, ChunkTopKCompressor()
    payload, ctx = compressor.encode_from(Source(e, g, leave="residual"), Key("w"))
    sent = torch.zeros_like(e)
    compressor.accumulate_(sent, payload, ctx)
    torch.testing.assert_close(e + sent, before)


@pytest.mark.parametrize(
    "settings, word",
    [
        ({"kept": 0}, "kept"),
        ({"chunk": 100}, "chunk"),
        ({"bits": 3}, "bits"),
        ({"kept": 65, "chunk": 64}, "kept"),
    ],
)
def test_wrong_settings_are_rejected(settings, word):
    with pytest.raises(ConfigError, match=f"{word}="):
        grace.chunktopk(**settings)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_broken_payloads_change_nothing(part):
    compressor, x = ChunkTopKCompressor(kept=3, chunk=64, bits=2), torch.randn(64)
    payload, ctx = compressor.compress(x, "w")
    if part == 2:
        payload[2].fill_(float("nan"))
    else:
        payload[part].fill_(255)
    out = torch.ones(64)
    with pytest.raises(PayloadError):
        compressor.combine_(out, [payload], ctx)
    with pytest.raises(PayloadError):
        compressor.accumulate_(out, payload, ctx)


def sparse_loco(rank: int, world: int, text: str) -> tuple[torch.Tensor, float]:
    """A regression of 8,192 weights with local steps, every rank on data of its own; the weights and their squared error."""
    torch.manual_seed(0)
    model = nn.Linear(512, 16, bias=False)
    target = torch.randn(16, 512) / 512**0.5
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    rates = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=800)
    outer = grace.LocalSteps(model, optimizer, text, every=10)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(800):
        x = torch.randn(32, 512, generator=generator)
        nn.functional.mse_loss(model(x), x @ target.T).backward()
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
        outer.step()
    assert outer.stats().ratio > 120
    weights = model.weight.detach()
    return weights, 512 * float((weights - target).square().mean())


def test_sparse_loco_learns_by_the_decay_of_its_residual(launch):
    """The error, 1.33 at first: 0.007 with a decay of 0.95, 0.30 without decay, 0.59 without a memory; none of it with float32."""
    answers = launch(sparse_loco, 2, "chunktopk:beta=0.95")
    assert bits_equal(answers[0][0], answers[1][0])
    (_, error), *_ = answers
    assert error < 0.02
    for text in ("chunktopk:beta=1.0", "chunktopk:memory=none"):
        assert launch(sparse_loco, 2, text)[0][1] > 10 * error
