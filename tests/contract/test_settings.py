"""Point 9: bad settings fail when built, with the value, the reason and what would do."""

from __future__ import annotations

import itertools
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

import grace_dl as grace
from contract.cases import METHODS, NAMES, communicator
from grace_dl import catalog, methods
from grace_dl.algebra.named import build
from grace_dl.errors import ConfigError
from grace_dl.memory.dgc import DgcMemory
from grace_dl.memory.residual import ResidualMemory
from grace_dl.methods.topk import TopKCompressor

NONSENSE: list[Any] = [math.nan, -1, -0.5, "nonsense", [], object()]


def parameters():
    for name in NAMES:
        for setting in catalog.settings_of(METHODS[name]).values():
            yield pytest.param(name, setting, id=f"{name}-{setting.name}")


@pytest.mark.parametrize("name, setting", list(parameters()))
def test_nonsense_is_refused(name, setting):
    """By the constructor, and by the class where the setting is one of the compressor's."""
    values = NONSENSE
    if isinstance(setting.default, bool) or setting.name == "scaled":
        values = ["nonsense", [], object()]
    # Some settings are looked at only where they matter.
    others = {"warmup_stages": 3, "warmup_steps": 2} if setting.name == "warmup_coeff" else {}
    others = {"warmup_steps": 2} if setting.name == "warmup_stages" else others
    others = {"warmup_stages": 2} if setting.name == "warmup_steps" else others
    ways = [lambda value: build(name, **{setting.name: value, **others})]
    if setting in METHODS[name].parameters:
        ways.append(lambda value: METHODS[name].cls(**{setting.name: value}))
    for value in values:
        for way in ways:
            with pytest.raises(ConfigError) as caught:
                way(value)
            message = str(caught.value)
            assert setting.name in message, message
            assert repr(value) in message or repr(tuple(value)) in message, message


@pytest.mark.parametrize("name", [n for n in NAMES if any(p.name == "ratio" for p in METHODS[n].parameters)])
@pytest.mark.parametrize("ratio", [0, 0.0, 1.0001, 2, -0.1, math.inf, math.nan, None, True, "0.1"])
def test_ratios_outside_zero_and_one(name, ratio):
    with pytest.raises(ConfigError, match="ratio"):
        METHODS[name].cls(ratio=ratio)


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
    info = METHODS[name]
    for memory, way in itertools.product(catalog.MEMORIES, catalog.COMMUNICATORS):
        permitted_ways = catalog.communicators_of(info, catalog.MEMORIES[memory])
        # Scripts that name memory 'none' for a method that is nothing without one mean the method's own.
        permitted = way in permitted_ways and (memory in info.memories or memory == "none")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if permitted:
                found = communicator(grace.manual(build(name, memory=memory, communicator=way)))
                assert found.name == way
                assert catalog.memory_name(found.memory) in info.memories
                continue
            with pytest.raises(ConfigError) as caught:
                build(name, memory=memory, communicator=way)
        message = str(caught.value)
        assert name in message
        partners = (permitted_ways, info.memories)
        assert any(all(partner in message for partner in would_do) for would_do in partners), message


@pytest.mark.parametrize("name", NAMES)
def test_the_name_alone_gives_the_right_partners(name):
    info = METHODS[name]
    found = communicator(grace.manual(build(name)))
    assert catalog.memory_name(found.memory) == info.memories[0]
    assert found.name == catalog.default_communicator(info, 1)
    assert found.name in catalog.communicators_of(info)


@pytest.mark.parametrize(
    "name, settings, near",
    [
        ("topkk", {}, "topk"),
        ("qsdg", {}, "qsgd"),
        ("topk", {"memory": "residul"}, "residual"),
        ("topk", {"communicator": "allgathr"}, "allgather"),
        ("topk", {"compress_ratio": 0.1}, "ratio"),
        ("topk", {"quantum_num": 127}, "ratio"),
        ("qsgd", {"ratio": 0.1}, "quantum_num"),
        ("none", {"sed": 3}, "seed"),
    ],
    ids=str,
)
def test_unknown_names_are_never_ignored(name, settings, near):
    with pytest.raises(ConfigError, match=near):
        build(name, **settings)


def test_objects_are_checked_as_names_are():
    with pytest.raises(ConfigError, match=r"allreduce.*allgather"):
        grace.custom(TopKCompressor(0.1), ResidualMemory(), "allreduce")
    with pytest.raises(ConfigError, match="alltoall"):
        grace.custom(TopKCompressor(0.1), communicator="alltoall")
    with pytest.raises(ConfigError, match=r"dgc.*residual"):
        grace.custom(TopKCompressor(0.1), DgcMemory())
    with pytest.raises(ConfigError, match="TopKCompressor"):
        grace.custom(TopKCompressor, ResidualMemory())  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        grace.custom("topk")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="memory"):
        grace.custom(TopKCompressor(0.1), "residual")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [{"dense_below": -1}, {"dense_below": 1.5}, {"dense_below": "2"}, {"seed": 0.5}, {"seed": "1"}],
)
def test_settings_of_every_method(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        grace.topk(0.1, **settings)
    with pytest.raises(ConfigError, match=next(iter(settings))):
        grace.custom(TopKCompressor(0.1), **settings)


@pytest.mark.parametrize("beta, gamma", [(0, 1), (-1, 1), (1, 0), (math.nan, 1), (1, math.inf)])
def test_settings_of_the_residual_memory(beta, gamma):
    with pytest.raises(ConfigError, match=r"beta|gamma"):
        ResidualMemory(beta, gamma)
    with pytest.raises(ConfigError, match=r"beta|gamma"):
        grace.topk(0.1, beta=beta, gamma=gamma)


def test_pairs_known_to_diverge_warn():
    """Large variance and error feedback do not go together (contract, point 4)."""
    warned = [name for name in NAMES if "residual" in METHODS[name].warn]
    assert warned, "no method warns of any pair"
    for name in warned:
        with pytest.warns(UserWarning, match="residual"):
            build(name, memory="residual")


def test_all_methods_are_there():
    assert set(NAMES) >= set(catalog.builtin_names())
    assert len(catalog.builtin_names()) == len(list(Path(methods.__file__).parent.glob("[a-z]*.py")))


def test_no_method_has_the_name_of_a_module():
    """Importing grace_dl.<name> would replace the constructor."""
    package = Path(grace.__file__).parent
    for name in catalog.builtin_names():
        assert not (package / name).exists() and not (package / f"{name}.py").exists(), name
