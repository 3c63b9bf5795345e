"""Bytes of exchanges among many ranks, computed from the layouts that are really used, for the gradients of known models."""

from __future__ import annotations

import pytest
import torch

import grace_dl as grace
from grace_dl import catalog
from grace_dl.algebra.named import Named, build
from grace_dl.bench.models import gpt2_shapes, resnet50_shapes
from grace_dl.communicator.base import Communicator
from grace_dl.communicator.dealing import GRAIN, dealt
from grace_dl.communicator.state import State
from grace_dl.compressor.sparse import SparseCodec
from grace_dl.pipeline.bucket import Bucket
from grace_dl.pipeline.outline import blank_bucket
from grace_dl.pipeline.request import Gather, Swap
from grace_dl.plan.echo import EchoTransport
from grace_dl.plan.profile import Parameter, Profile
from grace_dl.session import Session
from values import not_none


def buckets(shapes: list[tuple[int, ...]]) -> list[Bucket]:
    """The buckets that DDP makes of a model's gradients."""
    made = [Parameter(f"p{place}", shape, torch.float32, 0.0) for place, shape in enumerate(shapes)]
    profile = Profile("model", tuple(made[::-1]), forward=1.0, backward=1.0, update=0.0)
    return [blank_bucket(p[:3] for p in bucket) for bucket in profile.buckets()]


MODELS = {"resnet50": buckets(resnet50_shapes()), "gpt2": buckets(gpt2_shapes())}


def among(method: Named, size: int) -> Communicator:
    return method.build(EchoTransport(size), State())


def leaving(communicator: Communicator, model: str, estimate: float = 0.05) -> int:
    """Bytes that leave a rank in a step; payloads of unknown size have `estimate` bytes per element."""
    return sum(
        stage.request.leaving_bytes(communicator.transport.size)
        for bucket in MODELS[model]
        for stage in communicator.outline(bucket, lambda numel: int(estimate * numel))
        if stage.request is not None
    )


def leaving_each(communicator: Communicator, model: str) -> list[int]:
    """Bytes that leave each rank in an all-to-all."""
    size = communicator.transport.size
    sent = [0] * size
    for bucket in MODELS[model]:
        swap, gather = (stage.request for stage in communicator.outline(bucket)[:2])
        assert isinstance(swap, Swap) and isinstance(gather, Gather)
        for rank, own in enumerate(swap.in_splits):
            sent[rank] += swap.payload_bytes - own + gather.leaving_bytes(size)
    return sent


def payload(communicator: Communicator, model: str) -> int:
    total = 0
    for bucket in MODELS[model]:
        for segment, dense in zip(bucket.segments, communicator._dense_flags(bucket)):
            size = communicator.compressor.payload_bytes(segment.flat.numel())
            assert size is not None
            total += segment.flat.nbytes if dense else size
    return total


DEALT = [name for name, info in catalog.methods().items() if "alltoall" in catalog.communicators_of(info)]
WIDE_PIECES = ("sketch", "eden")
"""A piece of sketch has 64 means, one of EDEN is padded: among a thousand ranks they weigh more."""


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", DEALT)
def test_an_alltoall_sends_twice_the_payload_among_any_number_of_ranks(name: str, model: str) -> None:
    method = build(name, communicator="alltoall")
    whole = payload(among(method, 2), model)
    for size in (2, 3, 4, 8, 64, 256, 1024):
        ideal, sent = 2 * whole * (size - 1) / size, leaving_each(among(method, size), model)
        allowed = 1.1 if name in WIDE_PIECES and size > 256 else 1.05
        assert 0.99 * ideal < min(sent) and max(sent) < allowed * ideal, (size, max(sent) / ideal)


SPARSE = [
    name for name, info in catalog.methods().items() if "sparse_allreduce" in catalog.communicators_of(info)
]


def bound(communicator: Communicator, model: str) -> float:
    """6k(W-1)/W values for k selected elements (a threshold selects one in a hundred), and uncompressed parameters."""
    codec, k, raw = communicator.compressor, 0, 0
    assert isinstance(codec, SparseCodec)
    for bucket in MODELS[model]:
        for segment, dense in zip(bucket.segments, communicator._dense_flags(bucket)):
            numel = segment.flat.numel()
            chosen = codec.chosen(numel)
            raw += numel * dense
            k += 0 if dense else numel // 100 if chosen is None else chosen
    size = communicator.transport.size
    return (6 * k + 2 * raw) * 4 * (size - 1) / size


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_allreduce_sends_less_than_six_values_a_selected_element(name: str, model: str) -> None:
    method = build(name, communicator="sparse_allreduce")
    for size in (2, 3, 4, 8, 16, 64, 256, 1024):
        communicator = among(method, size)
        assert leaving(communicator, model) < bound(communicator, model), size


@pytest.mark.parametrize("name", [name for name in SPARSE if name != "threshold"])
def test_an_allgather_is_kept_while_it_sends_no_more_than_that(name: str) -> None:
    numel, codec = 1_000_000, among(build(name), 1).compressor
    assert isinstance(codec, SparseCodec)
    values = not_none(codec.payload_bytes(numel)) / (4 * not_none(codec.chosen(numel)))
    (_, first), (size, then) = catalog.defaults_of(catalog.info(name))
    assert (first, then) == ("allgather", "sparse_allreduce")
    assert values * (size - 1) <= 6 < values * 1.5 * size


def test_stages_of_a_warm_up_send_less_than_plain_averaging() -> None:
    for part in grace.dgc(0.001, warmup_stages=4, warmup_steps=10).parts():
        assert isinstance(part, Named)
        for size in (2, 4, 5, 64, 1024):
            plain = sum(2 * bucket.nbytes * (size - 1) // size for bucket in MODELS["resnet50"])
            assert leaving(among(part, size), "resnet50") < plain


UNSCALED = {
    "inceptionn": "its payload varies from 2 to 34 bits per element, and cannot be dealt out in known sizes",
    "demo": "it is gathered; coefficients of several ranks could be added by owners, as in a sparse all-reduce",
}
"""Defaults that send more than plain averaging among many ranks; `attach` warns of them."""
BYTE_PER_ELEMENT = 1.0
"""What INCEPTIONN sends if gradients are several times its bound."""


@pytest.mark.parametrize("name", [name for name in catalog.builtin_names() if name not in UNSCALED])
def test_a_default_never_sends_more_than_plain_averaging(name: str) -> None:
    """Compared with a ring all-reduce of float32 gradients of ResNet-50."""
    for size in (2, 3, 4, 8, 64, 256, 1024):
        plain = sum(2 * bucket.nbytes * (size - 1) // size for bucket in MODELS["resnet50"])
        sent = leaving(among(build(name), size), "resnet50")
        # Uncompressed gradients are sent with their flags.
        assert sent <= plain * 1.001, (size, sent / plain)


@pytest.mark.parametrize("name", catalog.builtin_names())
def test_attach_warns_where_a_default_sends_more_than_plain_averaging(
    name: str, recwarn: pytest.WarningsRecorder
) -> None:
    """Also in reverse: those it does not warn of send less."""
    for size in (2, 4, 8, 64, 256, 1024):
        recwarn.clear()
        Session(build(name), EchoTransport(size))
        warned = [str(warning.message) for warning in recwarn if "plain averaging" in str(warning.message)]
        plain = sum(2 * bucket.nbytes * (size - 1) // size for bucket in MODELS["resnet50"])
        estimate = BYTE_PER_ELEMENT if name == "inceptionn" else 0.05
        times = leaving(among(build(name), size), "resnet50", estimate) / plain
        assert bool(warned) == (times > 1.01), (size, times)
        assert all(str(size) in text and "grace.hierarchical" in text for text in warned)
        assert not warned or name in UNSCALED


def test_a_chosen_communicator_is_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    Session(grace.demo(communicator="allgather"), EchoTransport(1024))
    assert not [warning for warning in recwarn if "plain averaging" in str(warning.message)]


def test_defaults_follow_the_number_of_ranks() -> None:
    for name in ("fp8", "qsgd", "u8bit", "natural", "terngrad", "int8", "int4", "onebit", "signsgd"):
        method = build(name)
        assert [among(method, size).name for size in (1, 2, 3, 64)] == ["allgather"] * 2 + ["alltoall"] * 2
        assert "communicator" not in str(method)
        assert among(method.but(communicator="allgather"), 64).name == "allgather"
    assert among(grace.fp16(), 64).name == "allreduce"  # type: ignore[arg-type]


@pytest.mark.parametrize("ranges", [1, 2, 3, 8, 61, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_every_element_is_dealt_out_once_and_ranges_are_even(seed: int, ranges: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    counts = [int(2 ** (18 * torch.rand((), generator=generator))) - 1 for _ in range(seed * 7 + 1)]
    nbytes = [count * (4 if count < 1024 else 1) for count in counts]
    grains = [4 if count < 1024 else GRAIN for count in counts]
    pieces, width = dealt(counts, nbytes, grains, ranges), [0] * ranges
    number = 0
    for shares, count, size in zip(pieces, counts, nbytes, strict=True):
        assert [share.start for share in shares] == [0, *(share.stop for share in shares[:-1])]
        assert shares[-1].stop == count
        for start, stop, place in shares:
            assert place >= number and (stop > start or count == 0)
            number = place
            width[place] += (stop - start) * size // max(count, 1)
    assert number < ranges
    assert max(width) <= sum(nbytes) / ranges + 2 * GRAIN
