"""Local steps as values: text form, published rules, clear errors."""

from __future__ import annotations

import pytest

import grace_dl as grace
from grace_dl.algebra.local_rule import LocalRule
from grace_dl.algebra.text import parse_rule, split_list
from grace_dl.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    [
        "diloco",
        "sparseloco:100",
        "diloco:every=60,fragments=3,delay=5,merge=0.5",
        "local(topk:0.01,beta=0.9; every=50)",
        "local(schedule(0=none; 3=int4); every=10; outer_lr=0.5)",
    ],
)
def test_texts_are_read_and_written(text: str) -> None:
    rule = parse_rule(text)
    assert isinstance(rule, LocalRule) and parse_rule(str(rule)) == rule and hash(rule) == hash(rule)


def test_lists_hold_rules_and_methods() -> None:
    texts = split_list("diloco:100,fragments=2 topk:0.01,beta=0.9,local(int4; every=30) sparseloco")
    assert texts == [
        "diloco:100,fragments=2",
        "topk:0.01,beta=0.9",
        "local(int4; every=30)",
        "sparseloco",
    ]
    assert parse_rule("int8") == grace.int8()


@pytest.mark.parametrize(
    "text, said",
    [
        ("local", "must name a method"),
        ("local(every=3)", "must name a method"),
        ("local:int4", "must name a method"),
        ("local(int4; evry=3)", "'evry' is no setting of local steps"),
        ("local(int4; every=3; every=4)", "twice"),
        ("local(int4; every=0)", "every=0"),
        ("local(int4; every=2; delay=3)", "delay=3"),
        ("local(int5; every=2)", "int5"),
        ("diloco:memory=none", "'memory' is no setting"),
        ("diloco:30,every=40", "twice"),
        ("diloco:outer_lr=0", "outer_lr=0"),
        ("sparseloco:outer_momentum=1", "outer_momentum=1"),
    ],
)
def test_wrong_rules_are_rejected(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_rule(text)
    assert said in str(error.value)


def test_a_rule_is_no_method() -> None:
    with pytest.raises(ConfigError, match="rule for local steps, not a method"):
        grace.parse("diloco")
    with pytest.raises(ConfigError, match="is no method"):
        grace.manual(parse_rule("diloco"))  # type: ignore[arg-type]
