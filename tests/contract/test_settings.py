"""Point 9: bad settings fail when built, with the value, the reason and what would do."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest

from contract.cases import METHODS, NAMES
from grace_dl import registry
from grace_dl.communicator.allgather import Allgather
from grace_dl.communicator.allreduce import Allreduce
from grace_dl.communicator.alltoall import Alltoall
from grace_dl.compressor.topk import TopKCompressor
from grace_dl.errors import ConfigError
from grace_dl.helper import grace_from_params
from grace_dl.memory.dgc import DgcMemory
from grace_dl.memory.residual import ResidualMemory

NONSENSE = [math.nan, -1, -0.5, "nonsense", [], object()]


def parameters():
    for name in NAMES:
        for parameter in METHODS[name].parameters:
            yield pytest.param(name, parameter, id=f"{name}-{parameter.name}")


@pytest.mark.parametrize("name, parameter", list(parameters()))
def test_nonsense_is_refused(name, parameter):
    cls = METHODS[name].cls
    values = [v for v in NONSENSE if not (v == [] and parameter.name == "warmup_coeff")]
    if isinstance(parameter.default, bool) or parameter.name == "scaled":
        values = ["nonsense", [], object()]
    # Some settings are looked at only where they matter.
    others = {"warmup_epochs": 3} if parameter.name == "warmup_coeff" else {}
    for value in values:
        with pytest.raises(ConfigError) as caught:
            cls(**{parameter.name: value, **others})
        message = str(caught.value)
        assert parameter.name in message, message
        assert repr(value) in message, message


@pytest.mark.parametrize(
    "name", [n for n in NAMES if any(p.name == "compress_ratio" for p in METHODS[n].parameters)]
)
@pytest.mark.parametrize("ratio", [0, 0.0, 1.0001, 2, -0.1, math.inf, math.nan, None, True, "0.1"])
def test_ratios_outside_zero_and_one(name, ratio):
    with pytest.raises(ConfigError, match="compress_ratio"):
        METHODS[name].cls(compress_ratio=ratio)


@pytest.mark.parametrize("name", NAMES)
def test_defaults_and_first_argument(name):
    """Scripts pass the first setting by position: TopKCompressor(0.3), QSGDCompressor(127)."""
    record = METHODS[name]
    built = record.cls()
    if record.parameters:
        first = record.parameters[0]
        if first.default is not None:
            assert getattr(record.cls(first.default), first.name) == getattr(built, first.name)


@pytest.mark.parametrize("name", NAMES)
def test_every_combination_builds_or_says_what_would_do(name):
    record = METHODS[name]
    memories, ways = list(registry._MEMORIES), list(registry._COMMUNICATORS)
    for memory, way in itertools.product(memories, ways):
        params = {"compressor": name, "memory": memory, "communicator": way}
        # Scripts that name memory 'none' for a method that is nothing without one mean the method's own.
        permitted = way in record.communicators and (memory in record.memories or memory == "none")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if permitted:
                grace = grace_from_params(params)
                assert grace.kind == way
                assert registry.memory_name(grace.memory) in record.memories
                continue
            with pytest.raises(ConfigError) as caught:
                grace_from_params(params)
        message = str(caught.value)
        assert name in message
        would_do = record.communicators if way not in record.communicators else record.memories
        assert all(partner in message for partner in would_do), message


@pytest.mark.parametrize("name", NAMES)
def test_the_name_alone_gives_the_right_partners(name):
    record = METHODS[name]
    grace = grace_from_params({"compressor": name})
    assert registry.memory_name(grace.memory) == record.memories[0]
    assert grace.kind == record.communicator
    assert grace.kind in record.communicators


@pytest.mark.parametrize(
    "params, near",
    [
        ({"compressor": "topkk"}, "topk"),
        ({"compressor": "qsdg"}, "qsgd"),
        ({"compressor": "topk", "memory": "residul"}, "residual"),
        ({"compressor": "topk", "communicator": "allgathr"}, "allgather"),
        ({"compressor": "topk", "compres_ratio": 0.1}, "compress_ratio"),
        ({"compressor": "topk", "quantum_num": 127}, "compress_ratio"),
        ({"compressor": "qsgd", "compress_ratio": 0.1}, "quantum_num"),
        ({"compressor": "none", "sed": 3}, "seed"),
    ],
    ids=str,
)
def test_unknown_names_are_never_ignored(params, near):
    with pytest.raises(ConfigError, match=near):
        grace_from_params(params)


def test_objects_are_checked_as_names_are():
    with pytest.raises(ConfigError, match=r"allreduce.*allgather"):
        Allreduce(TopKCompressor(0.1), ResidualMemory())
    with pytest.raises(ConfigError, match="alltoall"):
        Alltoall(TopKCompressor(0.1))
    with pytest.raises(ConfigError, match=r"dgc.*residual"):
        Allgather(TopKCompressor(0.1), DgcMemory())
    with pytest.raises(ConfigError, match="TopKCompressor"):
        Allgather(TopKCompressor, ResidualMemory())
    with pytest.raises(ConfigError):
        Allgather("topk")


@pytest.mark.parametrize(
    "settings", [{"dense_below": -1}, {"world_size": 0}, {"world_size": 1.5}, {"world_size": "2"}]
)
def test_settings_of_the_communicator(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Allgather(TopKCompressor(0.1), **settings)


@pytest.mark.parametrize("beta, gamma", [(0, 1), (-1, 1), (1, 0), (math.nan, 1), (1, math.inf)])
def test_settings_of_the_residual_memory(beta, gamma):
    with pytest.raises(ConfigError, match=r"beta|gamma"):
        ResidualMemory(beta, gamma)


def test_pairs_known_to_diverge_warn():
    """Large variance and error feedback do not go together (contract, point 4)."""
    for name in ("eden", "terngrad", "qsgd"):
        record = METHODS[name]
        if "residual" not in record.warn:
            continue
        with pytest.warns(UserWarning, match="residual"):
            grace_from_params({"compressor": name, "memory": "residual"})
    assert any(METHODS[name].warn for name in NAMES), "no method warns of any pair"


def test_all_methods_are_there():
    assert set(NAMES) >= set(registry.BUILTIN)
    assert len(registry.BUILTIN) == 24
