"""One contract for every handle, whatever it is attached to: what each rank does, and what must hold of all ranks' answers.

`CHECKS` lists it. `test_contract.py` and `test_contract_elsewhere.py` run it on `torch.distributed`, `tests/hvd/test_handles.py` under
Horovod.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import grace_dl as grace
from contract.cases import bits_equal
from grace_dl.digest import sealed
from grace_dl.errors import ConfigError, StateError
from grace_dl.methods.topk import TopKCompressor
from handles.targets import SHAPES, Place, Target, Tensors, gradients, mean
from values import total


def close(a: Tensors, b: Tensors, tolerance: float = 1e-5) -> bool:
    return all(torch.allclose(a[name], b[name], atol=tolerance) for name in SHAPES)


def equal(a: Any, b: Any) -> bool:
    """Equal in all bits, at any depth."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return bits_equal(a, b) if isinstance(a, Tensor) else bool(a == b)


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def steps(target: Target, rank: int, first: int, last: int) -> list[Tensors]:
    return [target.step(gradients(rank, step)) for step in range(first, last)]


# stats() ----------------------------------------------------------------------------------------------------


def counting(rank: int, world: int, make: type[Target]) -> None:
    target = make(make.lossy)
    assert target.handle.stats().steps == 0
    steps(target, rank, 0, 3)
    stats = target.handle.stats()
    assert stats.steps == target.counted(3) and stats.skipped == 0
    assert stats.dense_bytes == 3 * 4 * sum(g.numel() for g in gradients(0, 0).values())
    assert 0 < stats.payload_bytes < stats.dense_bytes / 5
    assert stats.collectives >= 3
    assert (stats.leaving_bytes > 0) == (world > 1)
    assert stats.ratio > 5
    stats.steps = 100  # a copy
    assert target.handle.stats().steps == target.counted(3)
    target.handle.close()
    assert target.handle.stats().steps == target.counted(3)


# switch(), detach() -----------------------------------------------------------------------------------------

JOURNEY = [
    Target.lossy,
    "none",
    Target.lossy,
    "int8:memory=residual",
    "powersgd:2",
    "topk:0.2",
    "onebit",
    "by_parameter(*.bias=none; other.*=topk:0.1; default=powersgd:1)",
    "fp16:memory=residual",
    "schedule(0=topk:0.5; 13=topk:0.01; 15=acpsgd:1)",
    "none",
]
"""Two steps of each; there and back, between memories of one kind and of others, and between exchanges."""


def journey(rank: int, world: int, make: type[Target]) -> list[dict[str, Any]]:
    target = make(make.lossy)
    records, got = [], {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for number, text in enumerate(make.journey or JOURNEY):
        target.handle.switch(text)
        assert target.handle.method == grace.parse(text)
        for step in (2 * number, 2 * number + 1):
            result = target.step(gradients(rank, step))
            got = {name: got[name] + result[name] for name in SHAPES}
            residuals = {name: target.handle.session.residual(name) for name in SHAPES}
            owed = {
                name: torch.zeros(SHAPES[name]) if r is None else r.view(SHAPES[name]).clone()
                for name, r in residuals.items()
            }
            records.append({"got": got, "owed": owed, "text": text})
    return records


def nothing_is_lost(world: int, answers: list[Any]) -> None:
    """After every step: all results and what all ranks still owe are all gradients."""
    given = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for step, records in enumerate(zip(*answers, strict=True)):
        given = {name: given[name] + g for name, g in mean(world, step).items()}
        for name in SHAPES:
            owed = total(record["owed"][name] for record in records) / world
            off = (records[0]["got"][name] + owed - given[name]).abs().max()
            # A sum of 16-bit payloads rounds on the way, on no rank in particular.
            assert off < (0.02 if step >= 2 * JOURNEY.index("fp16:memory=residual") else 1e-4), (
                f"{name} at step {step} with {records[0]['text']}: off by {off}"
            )
            assert all(bits_equal(r["got"][name], records[0]["got"][name]) for r in records)
        if records[0]["text"] == "none":
            assert all(not record["owed"][name].any() for record in records for name in SHAPES)


def detaching(rank: int, world: int, make: type[Target]) -> None:
    target = make(make.lossy)
    results = steps(target, rank, 0, 3)
    target.handle.detach()
    assert target.handle.method == grace.none()
    results += steps(target, rank, 3, 4)
    for name in SHAPES:
        given = total(mean(world, step)[name] for step in range(4))
        assert torch.allclose(total(r[name] for r in results), given, atol=1e-4), name
        assert target.handle.session.residual(name) is None
    assert close(steps(target, rank, 4, 5)[0], mean(world, 4))


class Broken(TopKCompressor):
    """Cannot be set to work."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("no copies today")


def failing_switch(rank: int, world: int, make: type[Target]) -> None:
    target, other = make(make.lossy), make(make.lossy)
    for one in (target, other):
        steps(one, rank, 0, 2)
    before = target.handle.state_dict()
    broken = grace.by_parameter({"layer.*": grace.int8()}, default=grace.custom(Broken(0.1)))
    for method, error in (
        ("topk:nonsense", ConfigError),
        (3, ConfigError),
        (broken, (RuntimeError, ConfigError)),
    ):
        with pytest.raises(error):
            target.handle.switch(method)  # type: ignore[arg-type]
    assert target.handle.method == grace.parse(make.lossy)
    assert equal(before, target.handle.state_dict())
    target.handle.load_state_dict(before)
    for mine, theirs in zip(steps(target, rank, 2, 4), steps(other, rank, 2, 4)):
        assert equal(mine, theirs)


def within_a_step(rank: int, world: int, make: type[Target]) -> None:
    target = make(make.lossy)
    steps(target, rank, 0, 1)
    state, refused = target.handle.state_dict(), []

    def during() -> None:
        for change in (
            lambda: target.handle.switch("none"),
            target.handle.detach,
            target.handle.state_dict,
            lambda: target.handle.load_state_dict(state),
        ):
            with pytest.raises(ConfigError, match="under way"):
                change()
            refused.append(change)

    target.step(gradients(rank, 1), during)
    assert len(refused) == 4
    target.handle.detach()


# state_dict(), load_state_dict() ----------------------------------------------------------------------------

RESUMED = [
    "topk:0.1",
    "dgc:0.05,dense_below=0",
    "dgc:0.05",
    "signum",
    "qsgd",
    "onebit",
    "int8:memory=residual",
    "powersgd:2",
    "acpsgd:2",
    "schedule(0=none; 3=topk:0.1; 6=powersgd:2)",
    "schedule(0=topk:0.1; 4=powersgd:2)",
    "by_parameter(*.bias=none; other.*=qsgd; default=topk:0.1)",
    "by_parameter(layer.*=schedule(0=topk:0.5; 5=acpsgd:2); default=schedule(0=none; 3=signum))",
    "dgc:0.01,warmup_stages=2,warmup_steps=3",
    "powersgd:2,start_iter=3",
]
"""Saved after four steps of eight: in the middle of a schedule, at a change of stage, and of parts."""


def resuming(rank: int, world: int, make: type[Target], text: str) -> None:
    whole = make(text)
    expected = steps(whole, rank, 0, 8)
    first = make(text)
    steps(first, rank, 0, 4)
    saved = through_a_file(first.handle.state_dict())
    first.handle.close()
    second = make(text)
    second.handle.load_state_dict(saved)
    assert equal(make.loaded(saved), make.loaded(second.handle.state_dict()))
    for step, (a, b) in enumerate(zip(expected[4:], steps(second, rank, 4, 8)), 4):
        assert equal(a, b), f"step {step} differs"
    assert equal(whole.handle.state_dict(), second.handle.state_dict())


def resuming_what_is_carried(rank: int, world: int, make: type[Target]) -> None:
    """Saved between a switch and the step that pays."""
    first = make(make.lossy)
    steps(first, rank, 0, 2)
    first.handle.switch("none")
    saved = through_a_file(first.handle.state_dict())
    assert set(saved["moved"]) == set(SHAPES) >= set(saved["carried"])
    second = make("none")
    second.handle.load_state_dict(saved)
    for a, b in zip(steps(first, rank, 2, 4), steps(second, rank, 2, 4)):
        assert equal(a, b)
    state = second.handle.state_dict()
    assert not state["carried"] and not state["moved"]


def damaged(state: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    """States that must not be loaded, most of them with a digest that matches."""
    (part,) = state["parts"]
    memory = state["parts"][part]["memory"]
    changed: dict[str, Any] = {
        "another rank": {**state, "rank": rank + 1},
        "another world": {**state, "world_size": world + 1},
        "another method": {**state, "method": "topk:0.06,dense_below=0"},
        "another format": {**state, "format": 1},
        **{
            f"without {field}": {k: v for k, v in state.items() if k != field}
            for field in state
            if field != "digest"
        },
        "another part": {**state, "parts": {"qsgd": {"memory": {}}}},
        "no part": {**state, "parts": {}},
        "another memory": {**state, "parts": {part: {"first": memory}}},
        "no tensors": {**state, "parts": {part: {"memory": {**memory, "layer.weight": {"e": "zeros"}}}}},
        "no slots": {**state, "parts": {part: {"memory": {**memory, "layer.weight": None}}}},
        "no steps": {**state, "steps": {"layer.weight": "three"}},
        "nothing carried": {**state, "carried": {"layer.weight": 3}},
    }
    return {
        "nothing": None,
        "an empty list": [],
        "a rank twice": [state, state],
        "empty": {},
        "without digest": {k: v for k, v in state.items() if k != "digest"},
        "other content": {**state, "steps": {"layer.weight": 7}},
        **{what: sealed(one) for what, one in changed.items()},
    }


def loading_the_wrong_state(rank: int, world: int, make: type[Target]) -> None:
    target, other = make(make.lossy), make(make.lossy)
    for one in (target, other):
        steps(one, rank, 0, 2)
    before = target.handle.state_dict()
    for what, state in damaged(copy.deepcopy(before), rank, world).items():
        try:
            target.handle.load_state_dict(state)
        except StateError as error:
            assert len(str(error)) > 30
        else:
            raise AssertionError(f"{what} was loaded")
        assert equal(before, target.handle.state_dict()), what
    for mine, theirs in zip(steps(target, rank, 2, 4), steps(other, rank, 2, 4)):
        assert equal(mine, theirs)


# close() ----------------------------------------------------------------------------------------------------


def closing(rank: int, world: int, make: type[Target]) -> None:
    reference = make(make.lossy)
    expected = steps(reference, rank, 0, 3)
    target = make(make.other)
    for text in ("qsgd", make.lossy):
        steps(target, rank, 0, 2)
        target.handle.close()
        target.handle.close()
        assert target.handle.closed and "closed" in repr(target.handle)
        for use in (target.handle.state_dict, target.handle.detach, lambda: target.handle.method):
            with pytest.raises(ConfigError, match="closed"):
                use()
        if target.has_backward:
            plain = target.step(gradients(rank, 9))
            alone = gradients(rank, 9)
            assert close(plain, mean(world, 9) if target.averages_by_itself else alone)
        else:
            with pytest.raises(ConfigError, match="closed"):
                target.step(gradients(rank, 9))
        # Attached again it starts anew.
        target.attach(text)
    for a, b in zip(expected, steps(target, rank, 0, 3)):
        assert equal(a, b)


def copying(rank: int, world: int, make: type[Target]) -> None:
    target = make(make.lossy)
    steps(target, rank, 0, 1)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ConfigError, match=r"cannot be copied or pickled: .* state_dict"):
            copied(target.handle)
    steps(target, rank, 1, 2)


def leaving_a_block(rank: int, world: int, make: type[Target]) -> None:
    target = make(make.other)
    with target.handle as handle:
        assert handle is target.handle
        steps(target, rank, 0, 1)
    assert handle.closed and handle.stats().steps == target.counted(1)
    target.attach(make.other)
    with pytest.raises(ZeroDivisionError), target.handle:
        1 / 0  # noqa: B018
    assert target.handle.closed


# Methods ----------------------------------------------------------------------------------------------------


def sharing(rank: int, world: int, make: type[Target], text: str) -> None:
    text = make.lossy if text == "lossy" else text
    alone = make(text)
    expected = steps(alone, rank, 0, 3)
    method = grace.parse(text)
    first, second = make(method), make(method)
    steps(first, rank, 5, 7)
    fresh = second.handle.state_dict()
    assert not fresh["steps"] and not any(m for part in fresh["parts"].values() for m in part.values())
    assert second.handle.stats().steps == 0
    for step in range(3):
        assert equal(second.step(gradients(rank, step)), expected[step])
        first.step(gradients(rank, 7 + step))
    first.handle.switch("none")
    assert second.handle.method == method


def custom_twice(rank: int, world: int, make: type[Target]) -> None:
    method = grace.custom(TopKCompressor(0.1), dense_below=0)
    first, second = make(method), make(method)
    communicators = [t.handle.session.communicator_of("layer.weight") for t in (first, second)]
    assert communicators[0].memory is not communicators[1].memory
    assert communicators[0].compressor is not communicators[1].compressor
    expected = steps(make("topk:0.1,dense_below=0"), rank, 0, 2)
    steps(first, rank, 0, 1)
    for a, b in zip(expected, steps(second, rank, 0, 2)):
        assert equal(a, b)


def scheduled(rank: int, world: int, make: type[Target]) -> None:
    method = grace.schedule((0, grace.none()), (2, grace.topk(0.05, dense_below=0)), (4, grace.none()))
    target = make(method)
    for step, result in enumerate(steps(target, rank, 0, 4)):
        if step < 2:
            assert close(result, mean(world, step))
        else:
            assert all((r == 0).float().mean() > 0.8 for r in result.values()), step
    (last,) = steps(target, rank, 4, 5)
    # What top-k owed is paid by the first plain step.
    assert not close(last, mean(world, 4), 0.1)
    assert all(target.handle.session.residual(name) is None for name in SHAPES)
    assert close(steps(target, rank, 5, 6)[0], mean(world, 5))


def divided(rank: int, world: int, make: type[Target]) -> None:
    rules = {"*.bias": grace.none(), "other.*": grace.topk(0.05, dense_below=0)}
    target = make(grace.by_parameter(rules, default=grace.powersgd(rank=1)))
    (result,) = steps(target, rank, 0, 1)
    assert torch.allclose(result["layer.bias"], mean(world, 0)["layer.bias"], atol=1e-5)
    assert (result["other.weight"] == 0).float().mean() > 0.8
    assert torch.linalg.matrix_rank(result["layer.weight"], rtol=1e-4) == 1


def becoming_dense(rank: int, world: int, make: type[Target], before: str, after: str) -> Tensors:
    """Compressed at first, and then, with a memory of the same settings, too small or too full to be."""
    target = make(before)
    results = steps(target, rank, 0, 2)
    target.handle.switch(after)
    results += steps(target, rank, 2, 3)
    got = {name: total(r[name] for r in results) for name in SHAPES}
    for name in SHAPES if "dgc" not in before else ():
        given = total(mean(world, step)[name] for step in range(3))
        assert torch.allclose(got[name], given, atol=1e-4), name
        assert target.handle.session.residual(name) is None
    return {name: steps(target, rank, 3, 4)[0][name] for name in SHAPES}


def replicas_are_identical(world: int, answers: list[Any]) -> None:
    assert all(equal(answer, answers[0]) for answer in answers), "replicas differ"


# The list -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """A function of (rank, world, target class, *arguments), and what must hold of what all ranks return."""

    work: Callable[..., Any]
    arguments: tuple[str, ...] = ()
    verify: Callable[[int, list[Any]], None] = lambda world, answers: None
    backward: bool = False
    """Whether the target must have a backward pass."""
    needs: tuple[str, ...] = ()
    """Methods that the target must support, beside those among the arguments."""

    def applies_to(self, target: type[Target]) -> bool:
        texts = [text for text in (*self.arguments, *self.needs) if text != "lossy"]
        return (target.has_backward or not self.backward) and all(map(target.supports, texts))

    def hold(self, launch: Any, place: Place) -> None:
        """Run it at a place; raises if it does not hold."""
        answers = place.run(launch, place.world, self.work, place.target, *self.arguments)
        self.verify(place.world, answers)

    def at(self, target: str) -> str:
        """Its name at a target."""
        return f"{target}-{self}"

    def __str__(self) -> str:
        return "-".join([self.work.__name__, *self.arguments])


CHECKS = [
    Check(counting),
    Check(journey, verify=nothing_is_lost),
    Check(detaching),
    Check(failing_switch),
    Check(within_a_step, backward=True),
    *(Check(resuming, (text,)) for text in RESUMED),
    Check(resuming_what_is_carried),
    Check(loading_the_wrong_state),
    Check(closing),
    Check(leaving_a_block),
    Check(copying),
    *(
        Check(sharing, (text,))
        for text in ("lossy", "powersgd:2", "by_parameter(layer.*=qsgd; default=dgc:0.1)")
    ),
    Check(custom_twice, needs=("topk",)),
    Check(scheduled, needs=("topk",)),
    Check(divided, needs=("topk",)),
    *(
        Check(becoming_dense, texts, replicas_are_identical, backward=True)
        for texts in (
            ("topk:0.05,dense_below=0", "topk:0.05,dense_below=5000"),
            ("int4:memory=residual,dense_below=0", "int4:memory=residual,dense_below=5000"),
            ("powersgd:1", "powersgd:25"),
            ("dgc:0.05,dense_below=0", "dgc:1.0,dense_below=0"),
        )
    ),
]


def at_each(places: Sequence[Place]) -> pytest.MarkDecorator:
    """Parametrizes a test by places and the checks that apply to them."""
    cases = [
        pytest.param(place, check, id=check.at(str(place)))
        for place in places
        for check in CHECKS
        if check.applies_to(place.target)
    ]
    return pytest.mark.parametrize("place, check", cases)
