"""Methods are immutable values with one text form."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grace_dl
from grace_dl import Compressor, Method, catalog, registry
from grace_dl.algebra.named import Named, build
from grace_dl.algebra.text import split_list
from grace_dl.errors import ConfigError

grace: Any = grace_dl  # untyped: many calls here are wrong on purpose

NAMES = catalog.builtin_names()

every_method = pytest.mark.parametrize("name", NAMES)

ratios = st.floats(1e-6, 1.0, exclude_min=True)
positive = st.floats(1e-3, 1e3)
momenta = st.floats(0.01, 0.999)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "ratio": ratios,
    "value_dtype": st.sampled_from([None, "float16", "bfloat16", "float32"]),
    "beta": positive,
    "gamma": positive,
    "scaled": st.sampled_from([None, True, False]),
    "threshold": st.floats(0.0, 10.0),
    "rank": st.integers(1, 64),
    "min_compression_rate": st.floats(0.1, 100.0) | st.integers(1, 10),
    "num_iters_per_step": st.integers(1, 4),
    "start_iter": st.integers(0, 1000),
    "error_bound": st.sampled_from([2.0**-4, 2.0**-10, 2.0**-20]),
    "bits": st.sampled_from([1, 2, 4]),
    "kept": st.integers(1, 64),
    "chunk": st.sampled_from([64, 4096, 65536]),
    "quantum_num": st.integers(1, 32767),
    "bucket_size": st.integers(1, 4096),
    "norm": st.sampled_from(["l2", "max"]),
    "quantiles": st.sampled_from([2, 4, 64, 128, 256]),
    "lr": positive,
    "momentum": momenta,
    "sample_ratio": ratios,
    "strided_sample": st.booleans(),
    "compress_upper_bound": st.floats(1.0, 4.0),
    "compress_lower_bound": st.floats(0.1, 1.0),
    "max_adaptation_iters": st.integers(0, 20),
    "resample": st.booleans(),
    "fp16_values": st.booleans(),
    "int32_indices": st.booleans(),
    "nesterov": st.booleans(),
    "momentum_masking": st.booleans(),
    "eta": ratios,
    "decay": momenta,
    "reset": st.integers(1, 10_000),
    "sign": st.booleans(),
    "scale": st.sampled_from([None, "unbiased", "least_squares"]),
    "gradient_clipping": st.none() | positive | st.integers(1, 10) | st.just(float("inf")),
    "seed": st.integers(-(2**40), 2**40),
    "dense_below": st.none() | st.integers(0, 10**6),
}
"""Values of settings by name. Those of a warm-up depend on each other, and have a test of their own."""

TOGETHER = {"warmup_stages", "warmup_steps", "warmup_coeff"}


@st.composite
def named(draw: Any, name: str | None = None) -> Named:
    """A built-in method with partners and settings of its own."""
    name = name or draw(st.sampled_from(NAMES))
    info = catalog.info(name)
    memory = draw(st.sampled_from([None, *info.memories]))
    ways = catalog.communicators_of(info, catalog.memory_for(info, memory))
    given: dict[str, Any] = {"memory": memory, "communicator": draw(st.sampled_from([None, *ways]))}
    known = [*catalog.settings_of(info, given["memory"]), "seed", "dense_below"]
    for setting in draw(st.lists(st.sampled_from(known), unique=True)):
        if setting not in TOGETHER:
            given[setting] = draw(VALUES[setting])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build(name, **given)


patterns = st.text("abc.*?[!]_", min_size=1, max_size=8).filter(
    lambda pattern: pattern.count("[") == pattern.count("]") and pattern.find("]") >= pattern.find("[")
)


def compositions(parts: st.SearchStrategy[Method]) -> st.SearchStrategy[Method]:
    """Methods made of methods, one level deep in `parts`."""
    steps = st.lists(st.integers(1, 10_000), unique=True, max_size=3).map(sorted)
    stages = steps.flatmap(lambda firsts: st.tuples(*(st.tuples(st.just(s), parts) for s in [0, *firsts])))
    divided = st.builds(
        lambda rules, default: grace.by_parameter(rules, default=default),
        st.dictionaries(patterns, parts, max_size=3),
        parts,
    )
    return stages.map(lambda s: grace.schedule(*s)) | divided


methods = st.recursive(named(), compositions, max_leaves=5)


def evaluated(method: Method) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eval(repr(method), {"grace": grace})


def parsed(text: str) -> Method:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return grace.parse(text)


# Values -----------------------------------------------------------------------------------------------------


@every_method
def test_defaults_come_back(name: str) -> None:
    method = getattr(grace, name)()
    assert method == build(name) == parsed(name) == parsed(str(method)) == evaluated(method)
    assert hash(method) == hash(parsed(str(method)))
    assert method.settings == ()


@every_method
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_text_and_code_come_back(name: str, data: Any) -> None:
    method = data.draw(named(name))
    for again in (parsed(str(method)), evaluated(method), pickle.loads(pickle.dumps(method))):
        assert again == method and hash(again) == hash(method)
        assert str(again) == str(method) and repr(again) == repr(method)


@settings(max_examples=150, deadline=None)
@given(methods)
def test_compositions_come_back(method: Method) -> None:
    for again in (parsed(str(method)), evaluated(method)):
        assert again == method and hash(again) == hash(method)
        assert str(again) == str(method)


@settings(max_examples=50, deadline=None)
@given(st.lists(methods, max_size=5), st.sampled_from([",", " ", ", ", " , "]))
def test_lists_come_back(found: list[Method], separator: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        texts = [str(method) for method in found]
        for given in (separator.join(texts), texts):
            assert [grace.parse(text) for text in split_list(given)] == found


def test_a_warm_up_comes_back() -> None:
    for coeff in (None, 0.5, [0.5, 0.1]):
        method = grace.dgc(0.01, warmup_stages=2, warmup_steps=5, warmup_coeff=coeff)
        assert parsed(str(method)) == method == evaluated(method)
    assert [method.resolve("w", step).get("ratio") for step in (0, 5, 10)] == [0.5, 0.1, 0.01]
    assert method.resolve("w", 10) == grace.dgc(0.01)


def test_start_iter_is_a_schedule() -> None:
    method = grace.powersgd(2, start_iter=10)
    assert method.resolve("w", 9) == grace.none()
    assert method.resolve("w", 10) == grace.powersgd(2)
    assert set(method.parts()) == {grace.none(), grace.powersgd(2)}


def test_texts() -> None:
    assert str(grace.topk(0.01)) == "topk:0.01"
    assert repr(grace.topk(0.01)) == "grace.topk(ratio=0.01)"
    assert str(grace.none()) == "none" and repr(grace.none()) == "grace.none()"
    assert str(grace.topk(beta=0.9, seed=3)) == "topk:0.01,beta=0.9,seed=3"
    assert str(grace.qsgd(norm="max")) == "qsgd:127,norm=max"
    composed = grace.by_parameter({"*.bias": grace.none()}, default=grace.schedule((0, grace.int8())))
    assert str(composed) == "by_parameter(*.bias=none; default=schedule(0=int8))"
    assert (
        str(grace.schedule((0, grace.none()), (500, grace.topk(0.01)))) == "schedule(0=none; 500=topk:0.01)"
    )


def test_the_first_setting_by_position() -> None:
    assert (
        grace.topk(0.1) == grace.topk(ratio=0.1) == grace.parse("topk:0.1") == grace.parse("topk:ratio=0.1")
    )
    assert grace.powersgd(2) == grace.powersgd(rank=2) == grace.parse(" powersgd : rank = 2 ")
    assert grace.topk(1) == grace.topk(1.0) and str(grace.topk(1)) == str(grace.topk(1.0)) == "topk:1.0"


def test_equal_means_the_same_method() -> None:
    assert grace.topk(0.01) == grace.topk() != grace.topk(0.02)
    assert grace.topk(0.01) != grace.randomk(0.01)
    assert grace.topk(memory="residual") == grace.topk(memory=None) == grace.topk()
    assert grace.topk(memory="none") != grace.topk()
    assert len({grace.topk(0.01), grace.topk(), grace.parse("topk"), grace.topk(0.02)}) == 2
    first = grace.by_parameter({"a": grace.none(), "b": grace.int8()}, default=grace.int4())
    swapped = grace.by_parameter({"b": grace.int8(), "a": grace.none()}, default=grace.int4())
    assert first != swapped, "the first pattern that matches counts"


@pytest.mark.parametrize(
    "method",
    [
        grace.topk(0.1),
        grace.by_parameter({"*": grace.none()}, default=grace.none()),
        grace.schedule((0, grace.none())),
    ],
    ids=str,
)
def test_values_cannot_be_changed(method: Any) -> None:
    field = dataclasses.fields(method)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(method, field, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(method, field)


def test_arguments_are_copied() -> None:
    rules, ratios = {"*.bias": grace.none()}, [0.5, 0.1]
    composed = grace.by_parameter(rules, default=grace.int8())
    warm = grace.dgc(warmup_stages=2, warmup_steps=1, warmup_coeff=ratios)
    rules["*"] = grace.int4()
    ratios[0] = 0.9
    assert composed == grace.by_parameter({"*.bias": grace.none()}, default=grace.int8())
    assert warm.get("warmup_coeff") == (0.5, 0.1)


def test_settings_changed() -> None:
    assert grace.topk(0.01, seed=3).but(ratio=0.1) == grace.topk(0.1, seed=3)
    with pytest.raises(ConfigError, match="rank"):
        grace.topk().but(rank=3)


@every_method
def test_constructors_are_documented(name: str) -> None:
    constructor = getattr(grace, name)
    assert constructor.__name__ == name and constructor.__module__ == "grace_dl"
    assert constructor.__doc__ and len(constructor.__doc__) > 20
    signature = inspect.signature(constructor)
    assert {"memory", "communicator", "seed", "dense_below"} <= set(signature.parameters)
    first = catalog.info(name).parameters[:1]
    assert list(signature.parameters)[: len(first)] == [p.name for p in first]
    assert name in dir(grace)


def test_settings_of_both_halves_are_given_once() -> None:
    """The compressor's and the memory's are one setting."""
    for method, setting in ((grace.efsignsgd(lr=0.5), "lr"), (grace.signum(momentum=0.5), "momentum")):
        communicator = grace.manual(method).session.communicator_of("w")
        assert getattr(communicator.memory, setting) == 0.5
        own = [p.name for p in method.info.parameters]
        if setting in own:
            assert getattr(communicator.compressor, setting) == 0.5
        assert str(method).count("0.5") == 1
    objects = grace.custom(grace.efsignsgd().info.cls(lr=0.5))
    assert grace.manual(objects).session.communicator_of("w").memory.lr == 0.5


# Lists ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, items",
    [
        ("topk", ["topk"]),
        ("topk,int8", ["topk", "int8"]),
        ("topk int8", ["topk", "int8"]),
        ("topk:0.01,beta=0.9,int8", ["topk:0.01,beta=0.9", "int8"]),
        ("topk:0.01, beta=0.9 , int8", ["topk:0.01,beta=0.9", "int8"]),
        ("topk:ratio=0.1,powersgd:rank=2", ["topk:ratio=0.1", "powersgd:rank=2"]),
        ("dgc:warmup_coeff=[0.5,0.1],int8", ["dgc:warmup_coeff=[0.5,0.1]", "int8"]),
        ("schedule(0=none; 5=topk:0.1,beta=0.9), int8", ["schedule(0=none; 5=topk:0.1,beta=0.9)", "int8"]),
        ("", []),
        (" , ", []),
        (["ddp", "topk:0.1 int8"], ["ddp", "topk:0.1", "int8"]),
    ],
)
def test_lists_of_texts(text: Any, items: list[str]) -> None:
    assert split_list(text) == items


# Errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, message",
    [
        ("topkk:0.1", r"unknown method 'topkk': did you mean 'topk'\?"),
        ("TopK", r"did you mean 'topk'\?"),
        ("topk:ration=0.1", r"topk: unknown setting 'ration': did you mean 'ratio'\?"),
        ("topk:0.1,0.2", "only the first setting may go without a name"),
        ("topk:ratio=0.1,0.2", "only the first setting may go without a name"),
        ("topk:0.1,ratio=0.2", "'ratio' is given by position and by name"),
        ("topk:ratio=0.1,ratio=0.2", "'ratio' twice"),
        ("topk:2.0", r"ratio=2\.0"),
        ("topk:big", "ratio='big'"),
        ("none:3", "at most 0 settings"),
        ("", "no text of a method"),
        ("schedule(0=none", "closing bracket"),
        ("schedule(none)", "'none' must be a step and a method"),
        ("schedule(x=none)", "'x=none' must be a step and a method"),
        ("schedule()", r"\[\]; they must begin at 0"),
        ("schedule(5=none)", r"\[5\]; they must begin at 0 and increase"),
        ("schedule(0=none; 5=int8; 5=int4)", "increase"),
        ("by_parameter(*.bias=none)", "end it with default="),
        ("by_parameter(default=none; *.bias=int8)", "end it with default="),
        ("by_parameter(*=none; *=int8; default=none)", r"the pattern '\*' twice"),
        ("by_parameter(none; default=int8)", "'none' must be a pattern and a method"),
        ("topk:memory=residul", "did you mean 'residual'"),
        ("topk:memory=dgc", "does not work with memory 'dgc'"),
        ("topk:communicator=allreduce", "cannot go through allreduce"),
    ],
)
def test_texts_that_make_no_method(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        grace.parse(text)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: grace.topk(0.1, None, 3), "at most 2 settings by position, not 3"),
        (lambda: grace.topk(0.1, ratio=0.2), "by position and by name"),
        (lambda: grace.topk(rate=0.1), "unknown setting 'rate'"),
        (lambda: grace.schedule(grace.none()), "must be a pair"),
        (lambda: grace.schedule((0, grace.none)), r"call it, as in grace\.none\(\)"),
        (lambda: grace.schedule((0, "none")), "'none' is no method"),
        (lambda: grace.schedule((0.5, grace.none())), r"step=0\.5"),
        (lambda: grace.schedule((5, grace.none()), (0, grace.none())), "begin at 0 and increase"),
        (lambda: grace.by_parameter([("*", grace.none())], default=grace.none()), "must map patterns"),
        (lambda: grace.by_parameter({"": grace.none()}, default=grace.none()), "must map patterns"),
        (lambda: grace.by_parameter({"a=b": grace.none()}, default=grace.none()), "cannot be written"),
        (lambda: grace.by_parameter({"a[": grace.none()}, default=grace.none()), "cannot be written"),
        (lambda: grace.by_parameter({}, default=grace.topk), r"call it, as in grace\.topk\(\)"),
        (lambda: grace.parse(3), "no text of a method"),
        (lambda: grace.dgc(gradient_clipping={}), "immutable value"),
        (lambda: grace.manual(grace.topk), r"call it, as in grace\.topk\(\)"),
        (lambda: grace.manual(catalog.info("topk").cls), r"grace\.custom\(TopKCompressor\(\)\)"),
        (lambda: grace.manual(catalog.info("topk").cls(0.1)), r"wrap it, as in grace\.custom"),
        (lambda: grace.manual(0.01), r"such as grace\.topk\(0\.01\)"),
        (lambda: grace.manual(None), r"such as grace\.topk\(0\.01\)"),
        (lambda: grace.topk(memory=[]), r"memory=\[\] must be the name of a memory"),
        (lambda: grace.topk(communicator={}), r"communicator=\{\} must be the name"),
        (lambda: grace.register(None), "None cannot name a method"),
        (lambda: grace.parse(300 * "schedule(0=" + "none" + 300 * ")"), "more than 20 deep"),
        (lambda: grace.parse("topk:" + 5000 * "-" + "1"), "ratio="),
    ],
)
def test_calls_that_make_no_method(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_text_in_quotes_may_have_brackets(odd: Any) -> None:
    assert grace.parse(str(odd(50 * "("))) == odd(50 * "(")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, o: grace.attach(o, "topk", named_parameters=5), "named_parameters must be pairs"),
        (
            lambda m, o: grace.attach(o, "topk", backward_passes="x"),
            "backward_passes='x' must be a whole number",
        ),
        (
            lambda m, o: grace.attach(o, "topk", backward_passes=1.5),
            "backward_passes=1.5 must be a whole number",
        ),
        (lambda m, o: grace.attach(o, "topk", scaler=5), "scaler=5 is no gradient scaler"),
        (lambda m, o: grace.LocalSteps(None, o, "int4"), "not NoneType and SGD"),
        (lambda m, o: grace.LocalSteps(m, m.parameters(), "int4"), "not Linear and generator"),
        (lambda m, o: grace.simulated("x"), "size='x' must be a whole number"),
        (lambda m, o: grace.simulated(1.5), "size=1.5 must be a whole number"),
        (lambda m, o: grace.simulated(10**30), "from 1 to"),
        (lambda m, o: grace.manual("topk").step(None, "w"), "not NoneType and str"),
        (lambda m, o: grace.manual("topk").step(m.weight, []), "not Parameter and list"),
        (lambda m, o: grace.save(m, "checkpoint"), "of a handle, not of Linear"),
        (lambda m, o: grace.load(5, "checkpoint"), "of a handle, not of int"),
        (lambda m, o: grace.stateful(5), "of a handle, not of int"),
        (lambda m, o: grace.load(grace.manual("topk"), None), "None is not a folder"),
        (lambda m, o: grace.save(grace.manual("topk"), ""), "'' is not a folder"),
    ],
)
def test_wrong_objects_are_rejected_before_anything_is_attached(make: Any, message: str) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=message):
        make(model, optimizer)
    grace.attach(
        optimizer, "topk", named_parameters=model.named_parameters()
    ).close()  # nothing is left behind


def test_a_launcher_without_a_process_group_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every rank trains alone, and nothing says so."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match=r"2 ranks .*init_process_group first"):
        grace.manual("topk")


def test_a_warning_points_at_the_call() -> None:
    warned = next(name for name in NAMES if "residual" in catalog.info(name).warn)
    with pytest.warns(UserWarning, match="residual"):
        getattr(grace, warned)(memory="residual")


# Users' methods ---------------------------------------------------------------------------------------------


class Odd(Compressor):
    """Settings of every kind that a text has to carry."""

    def __init__(self, mode: str = "plain", sizes: tuple[int, ...] = (1, 2), limit: float = 1.0) -> None:
        super().__init__()
        self.mode, self.sizes, self.limit = mode, sizes, limit


@pytest.fixture(scope="module")
def odd() -> Any:
    grace.register("odd")(Odd)
    yield grace.odd
    registry.unregister("odd")


@settings(max_examples=100, deadline=None)
@given(
    mode=st.text(max_size=8)
    | st.sampled_from(["1", "None", "a,b", "a b", "(", "'", '"', "x=y", "1e5", "nan"]),
    sizes=st.lists(st.integers(-5, 5), max_size=3),
    limit=st.floats(allow_nan=False) | st.integers(-5, 5),
)
def test_settings_of_users_come_back(odd: Any, mode: str, sizes: list[int], limit: float) -> None:
    method = odd(mode, sizes=sizes, limit=limit)
    assert grace.parse(str(method)) == method == evaluated(method)
    composed = grace.schedule((0, grace.by_parameter({"*": method}, default=method)))
    assert grace.parse(str(composed)) == composed
    listed = split_list(f"{method}, {composed} none")
    assert [grace.parse(text) for text in listed] == [method, composed, grace.none()]


def clip(grad: Any) -> Any:
    return grad


def test_functions_are_written_by_name() -> None:
    """Ranks compare texts, and addresses differ between them."""
    method = grace.dgc(gradient_clipping=clip)
    assert method == grace.dgc(gradient_clipping=clip) != grace.dgc()
    assert str(method).endswith("clip") and "0x" not in str(method) + repr(method)
