"""`grace.hierarchical` as a value: text form, equality, and what it rejects."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import grace_dl as grace
from grace_dl.communicator.reduce_scatter import ReduceScatter
from grace_dl.communicator.state import State
from grace_dl.errors import ConfigError
from grace_dl.session import Session
from grace_dl.transport.local import LocalTransport

TEXTS = [
    "hierarchical(inner=none; outer=int4)",
    "hierarchical(inner=int8; outer=topk:0.01,beta=0.9)",
    "hierarchical(inner=none; outer=powersgd:4; ranks_per_node=8)",
    "hierarchical(inner=none; outer=int4; nodes=[[0,1],[2,3]])",
    "hierarchical(inner=none; outer=schedule(0=none; 500=topk:0.01))",
    "hierarchical(inner=none; outer=by_parameter(*.bias=none; default=int4); ranks_per_node=2)",
    "by_parameter(*.bias=none; default=hierarchical(inner=none; outer=int4))",
    "schedule(0=none; 5=hierarchical(inner=none; outer=topk:0.01; nodes=[[0,2],[1,3]]))",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_representation_hash_and_pickle(text: str) -> None:
    method = grace.parse(text)
    assert str(method) == text and grace.parse(str(method)) == method
    assert eval(repr(method), {"grace": grace}) == method
    assert {method: 1}[grace.parse(text)] == 1
    assert pickle.loads(pickle.dumps(method)) == method
    assert all(grace.parse(str(part)) == part for part in method.parts())


def test_defaults_and_equality() -> None:
    assert grace.hierarchical() == grace.hierarchical(grace.none(), grace.int4())
    assert grace.parse("hierarchical(outer=int4)") == grace.hierarchical()
    assert grace.hierarchical() != grace.hierarchical(ranks_per_node=2)
    assert grace.hierarchical(nodes=[[3, 2], [1, 0]]) == grace.hierarchical(nodes=((0, 1), (2, 3)))


def test_the_outer_method_may_change() -> None:
    outer = grace.by_parameter(
        {"*.bias": grace.none()}, default=grace.schedule((0, grace.none()), (5, grace.int4()))
    )
    method = grace.hierarchical(outer=outer)
    assert method.resolve("a.bias", 7) == grace.hierarchical(outer=grace.none())
    assert method.resolve("a.weight", 7) == grace.hierarchical(outer=grace.int4())
    assert method.stage(4) != method.stage(5) == method.stage(6)
    assert set(method.parts()) == {method.resolve("a.bias", 0), method.resolve("a.weight", 7)}
    warm = grace.hierarchical(outer=grace.powersgd(2, start_iter=10))
    assert warm.resolve("w", 0) == grace.hierarchical(outer=grace.none())
    assert warm.resolve("w", 10) == grace.hierarchical(outer=grace.powersgd(2))


@pytest.mark.parametrize(
    "text, message",
    [
        ("hierarchical(inner=topk; outer=int4)", "topk cannot go through"),
        ("hierarchical(inner=schedule(0=none; 5=int8); outer=int4)", "give a single method"),
        ("hierarchical(outer=hierarchical(outer=int4))", "three are not supported"),
        ("hierarchical(outer=by_parameter(*.w=hierarchical(); default=none))", "three are not supported"),
        ("hierarchical(outer=int4; ranks_per_node=0)", "ranks_per_node"),
        ("hierarchical(outer=int4; ranks_per_node=two)", "ranks_per_node"),
        ("hierarchical(outer=int4; ranks_per_node=2; nodes=[[0,1]])", "give one of them"),
        ("hierarchical(outer=int4; nodes=[0,1])", "must list the ranks of each node"),
        ("hierarchical(outer=int4; nodes=[])", "must list the ranks of each node"),
        ("hierarchical(outer=int4; between=int8)", "must be inner=, outer="),
        ("hierarchical(outer=int4; outer=int8)", "twice"),
        ("hierarchical(int4)", "must be inner=, outer="),
        ("hierarchical(outer=int4", "closing bracket"),
        ("hierarchical(outer=unheard)", "unknown method"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        grace.parse(text)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({}, "LOCAL_WORLD_SIZE is not set"),
        ({"ranks_per_node": 3}, "4 ranks are no whole number of nodes with 3"),
        ({"nodes": ((0, 1), (2, 4))}, "each of the 4 ranks once"),
        ({"nodes": ((0, 1), (2,))}, "equally many ranks on every node"),
        ({"nodes": ((0, 1), (1, 2))}, "each of the 4 ranks once"),
    ],
)
def test_nodes_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        grace.hierarchical(**settings).parts().__next__().build(grace.simulated(4)[0], State())


def test_sharded_models_are_referred_to_their_mesh() -> None:
    with pytest.raises(ConfigError, match="replicas="):
        Session(grace.hierarchical(), LocalTransport(), ReduceScatter)


def test_one_process_needs_no_launcher() -> None:
    import torch

    handle = grace.manual(grace.hierarchical(outer=grace.topk(0.5, dense_below=0)))
    assert handle.step(torch.tensor([1.0, 2.0, 3.0, 4.0]), "w").tolist() == [0, 0, 3, 4]
