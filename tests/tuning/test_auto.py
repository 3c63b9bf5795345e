"""`auto` on real ranks, whose clock is given: what it chooses, alike on all ranks, without losing anything."""

from __future__ import annotations

import io
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from torch import Tensor

import grace_dl as grace
from contract.cases import bits_equal
from grace_dl.errors import ConfigError, StateError
from grace_dl.tuning import timing, tuner
from grace_dl.tuning.tuner import PROBE_WINDOWS, SAMPLES, WARM_UP, WINDOW
from handles.targets import SHAPES, DDPTarget, OptimizerTarget, Target, Tensors, gradients, mean
from values import total

AUTO = "auto(topk:0.05,dense_below=0; int8:memory=residual,dense_below=0; powersgd:2)"
TOPK, INT8, POWERSGD = AUTO[5:-1].split("; ")
SETTLE = 60

Seconds = Mapping[str, float]


class Clock:
    """Time that passes only between steps, as a test says; in place of `timing.now`."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time

    def __enter__(self) -> Clock:
        self._real, timing.now = timing.now, self
        return self

    def __exit__(self, *_: object) -> None:
        timing.now = self._real


class Run:
    """A target whose steps take as long as `seconds` says for each choice (the first of a turn is not measured)."""

    def __init__(self, target: Target, rank: int, clock: Clock) -> None:
        self.target, self.rank, self.clock = target, rank, clock
        self.step = 0
        self.choices: list[str] = []
        self.got = {name: torch.zeros(shape) for name, shape in SHAPES.items()}

    @property
    def choice(self) -> str:
        return self.target.handle.stats().choice

    def steps(self, count: int, seconds: Seconds) -> None:
        for _ in range(count):
            self.clock.time += seconds.get(self.choice, 1.0)
            result = self.target.step(gradients(self.rank, self.step))
            self.got = {name: self.got[name] + result[name] for name in SHAPES}
            self.step += 1
            self.choices.append(self.choice)

    def owed(self) -> dict[str, Tensor]:
        found = {name: self.target.handle.session.residual(name) for name in SHAPES}
        return {
            n: torch.zeros(SHAPES[n]) if r is None else r.view(SHAPES[n]).clone() for n, r in found.items()
        }

    def answer(self) -> dict[str, Any]:
        explained = self.target.handle.explain()
        return {
            "choices": self.choices,
            "got": self.got,
            "owed": self.owed(),
            "steps": self.step,
            "text": explained,
        }


def verify(world: int, answers: Sequence[dict[str, Any]], frozen: Container[int] = ()) -> None:
    """Ranks have chosen alike, replicas are identical, and nothing is lost; `frozen`: steps without one parameter."""
    first = answers[0]
    for other in answers[1:]:
        assert (other["choices"], other["text"]) == (first["choices"], first["text"])
        assert all(bits_equal(other["got"][name], first["got"][name]) for name in SHAPES)
    for name in SHAPES:
        steps = [step for step in range(first["steps"]) if name != Freezing.name or step not in frozen]
        given = total(mean(world, step)[name] for step in steps)
        owed = total(answer["owed"][name] for answer in answers) / world
        assert torch.allclose(first["got"][name] + owed, given, atol=2e-3), name


def chosen(rank: int, world: int, make: type[Target], seconds: Sequence[Seconds]) -> dict[str, Any]:
    """One phase of steps for each table of times; a rank's own are stretched a little."""
    with Clock() as clock:
        run = Run(make(AUTO), rank, clock)
        for table in seconds:
            run.steps(SETTLE, {choice: took * (1 + 0.02 * rank) for choice, took in table.items()})
            assert run.target.handle.settled
        return run.answer()


@pytest.mark.parametrize("make, world", [(DDPTarget, 2), (OptimizerTarget, 3)])
def test_the_fastest_is_kept_through_changes(launch: Any, make: type[Target], world: int) -> None:
    pays = {"none": 1.0, TOPK: 0.5, INT8: 0.9, POWERSGD: 0.8}
    other = {"none": 2.0, TOPK: 2.0, INT8: 1.9, POWERSGD: 0.7}
    none_pays = {"none": 0.4, TOPK: 0.9, INT8: 0.9, POWERSGD: 0.9}
    answers = launch(chosen, world, make, [pays, other, none_pays])
    verify(world, answers)
    choices = answers[0]["choices"]
    assert set(choices[: WARM_UP + SAMPLES]) == {"none"}
    assert {*choices} >= {TOPK, INT8, POWERSGD}
    assert [choices[SETTLE * phase - 1] for phase in (1, 2, 3)] == [TOPK, POWERSGD, "none"]


def test_nothing_pays(launch: Any) -> None:
    answers = launch(chosen, 2, DDPTarget, [{"none": 1.0, TOPK: 1.2, INT8: 0.99, POWERSGD: 1.1}])
    verify(2, answers)
    assert answers[0]["choices"][-1] == "none"
    text = answers[0]["text"]
    assert text.startswith("auto uses none after 60 steps and 0 changes of its choice.\n")
    assert "Decided because the first steps were measured. A step with none took 1.02 s" in text
    assert "No other was faster by 3% or more, so none stays." in text
    assert f"  {INT8}: predicted " in text and ", measured 1.01 s in 3 turns" in text


def changing(rank: int, world: int) -> str:
    """Steps take longer from the middle of a window on."""
    with Clock() as clock:
        run = Run(DDPTarget(AUTO), rank, clock)
        fast = {"none": 1.0, TOPK: 0.5}
        while not run.target.handle.settled:
            run.steps(1, fast)
        run.steps(WINDOW - 1, fast)  # until the window ends, whose steps later ones are compared with
        run.steps(WINDOW // 2, fast)
        run.steps(WINDOW // 2 + 1, {"none": 9.0, TOPK: 3.0})
        assert not run.target.handle.settled
        return run.target.handle.explain()


def test_steps_before_a_change_do_not_count(launch: Any) -> None:
    for text in launch(changing, 2):
        assert f"A step with {TOPK} took 3 s" in text


def changing_in_a_trial(rank: int, world: int) -> tuple[str, str]:
    """What the trial has compared no longer holds when it ends."""
    with Clock() as clock:
        run = Run(DDPTarget(AUTO), rank, clock)
        while not run.target.handle.settled:
            run.steps(1, {"none": 1.0, TOPK: 0.5})
        before = run.choice
        run.steps(WINDOW + SETTLE, {"none": 2.0, TOPK: 3.0, INT8: 3.0, POWERSGD: 3.0})
        return before, run.choice


def test_a_change_during_a_trial_is_noticed(launch: Any) -> None:
    assert launch(changing_in_a_trial, 2) == [(TOPK, "none")] * 2


def stable(rank: int, world: int, probes: Sequence[tuple[float, float]]) -> tuple[int, str]:
    """After settling, the link is found to be as `probes` say, one after another; steps take as long as before."""
    found = iter(probes)
    with Clock() as clock, mock.patch.object(tuner, "probe", lambda *_: next(found)):
        run = Run(DDPTarget(AUTO), rank, clock)
        while not run.target.handle.settled:
            run.steps(1, {"none": 1.0, TOPK: 0.5})
        run.steps(PROBE_WINDOWS * WINDOW + 1, {"none": 1.0, TOPK: 0.5})
        return len(list(found)), run.target.handle.explain()


NORMAL, SLOW, FAST = (1e-4, 1e-2), (1e-4, 1e-1), (1e-4, 1e-3)


@pytest.mark.parametrize(
    "then, why", [(SLOW, "the first steps were measured"), (FAST, "the link became 11 × as fast")]
)
def test_a_hidden_exchange_is_reconsidered_if_the_link_became_faster(
    launch: Any, then: tuple[float, float], why: str
) -> None:
    for left, text in launch(stable, 2, [NORMAL, then, then]):
        assert f"Decided because {why}" in text
        assert left == (1 if then is SLOW else 0)


def disagreeing(rank: int, world: int, make: type[Target]) -> dict[str, Any]:
    """Every rank finds another method the fastest."""
    with Clock() as clock:
        run = Run(make(AUTO), rank, clock)
        fast = [TOPK, INT8, POWERSGD][rank]
        for phase in range(2):
            fast = [TOPK, INT8, POWERSGD][(rank + phase) % 3]
            run.steps(SETTLE, {"none": 1.0 + phase, fast: 0.3, TOPK: 0.6 * (1 + phase)})
        return run.answer()


@pytest.mark.parametrize("make, world", [(OptimizerTarget, 2), (DDPTarget, 3)])
def test_ranks_with_different_times_decide_alike(launch: Any, world: int, make: type[Target]) -> None:
    verify(world, launch(disagreeing, world, make))


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resumed(rank: int, world: int, make: type[Target], before: int) -> dict[str, Any]:
    """Saved after some steps, and loaded by a new target, beside one that goes on."""
    seconds = {"none": 1.0, TOPK: 0.5}
    with Clock() as clock:
        run = Run(make(AUTO), rank, clock)
        run.steps(before, seconds)
        state = through_a_file(run.target.handle.state_dict())
        again = Run(make(AUTO), rank, clock)
        again.target.handle.load_state_dict(state)
        again.step, again.got, again.choices = run.step, dict(run.got), list(run.choices)
        if run.target.handle.settled:
            assert again.target.handle.settled and again.choice == TOPK
            assert "topk:0.05,dense_below=0 took 0.50 of the time of none" in again.target.handle.explain()
            for one in (run, again):
                one.steps(2 * WINDOW, seconds)
            assert again.choices == run.choices
            assert all(bits_equal(run.got[name], again.got[name]) for name in SHAPES)
        again.steps(SETTLE, seconds)
        assert again.choice == TOPK
        with pytest.raises(StateError):
            make("topk:0.1").handle.load_state_dict(state)
        broken = {**state, "auto": {**state["auto"], "default": "eden"}}
        with pytest.raises(StateError):
            make(AUTO).handle.load_state_dict(broken)
        return again.answer()


@pytest.mark.parametrize(
    "make, before",
    [(OptimizerTarget, 5), (DDPTarget, 17), (DDPTarget, SETTLE), (OptimizerTarget, SETTLE)],
    ids=["measuring", "trying", "settled-DDP", "settled-optimizer"],
)
def test_it_resumes(launch: Any, make: type[Target], before: int) -> None:
    verify(2, launch(resumed, 2, make, before))


def switched(rank: int, world: int, make: type[Target]) -> dict[str, Any]:
    with Clock() as clock:
        run = Run(make(TOPK), rank, clock)
        assert run.target.handle.settled and "attached" in run.target.handle.explain()
        run.steps(3, {})
        run.target.handle.switch(AUTO)
        assert run.target.handle.method == grace.parse(AUTO) and not run.target.handle.settled
        run.steps(SETTLE, {"none": 1.0, POWERSGD: 0.5})
        assert run.choice == POWERSGD
        run.target.handle.switch(INT8)
        assert run.choice == ""
        run.steps(3, {})
        run.target.handle.detach()
        run.steps(1, {})
        return run.answer()


@pytest.mark.parametrize("make", [DDPTarget, OptimizerTarget])
def test_switching_to_auto_and_away(launch: Any, make: type[Target]) -> None:
    verify(2, launch(switched, 2, make))


IN_A_TRIAL = WARM_UP + SAMPLES + 6
"""Steps after which the second candidate is in use, and the first has left residuals."""


def left_in_a_trial(rank: int, world: int, make: type[Target], method: str) -> dict[str, Any]:
    with Clock() as clock:
        run = Run(make(AUTO), rank, clock)
        run.steps(IN_A_TRIAL, {})
        assert "It is trying" in run.target.handle.explain() and run.choice != "none"
        run.target.handle.switch(method)
        assert run.target.handle.settled == (method != "auto(bf16)")
        run.steps(3, {})
        return run.answer()


@pytest.mark.parametrize(
    "make, method", [(DDPTarget, "none"), (OptimizerTarget, TOPK), (OptimizerTarget, "auto(bf16)")]
)
def test_switching_in_the_middle_of_a_trial(launch: Any, make: type[Target], method: str) -> None:
    verify(2, launch(left_in_a_trial, 2, make, method))


class Freezing(OptimizerTarget):
    """One parameter may be frozen."""

    name: ClassVar[str] = "other.weight"

    def step(self, grads: Tensors, during: Callable[[], None] | None = None) -> Tensors:
        self.model.zero_grad()
        self.network(grads).backward()
        self.after_backward()
        return {
            name: torch.zeros(SHAPES[name]) if p.grad is None else p.grad.clone()
            for name, p in self.model.named_parameters()
        }


FROZEN = range(IN_A_TRIAL - 4, IN_A_TRIAL + 9)


def freezing_in_a_trial(rank: int, world: int, until: int) -> dict[str, Any]:
    with Clock() as clock:
        target = Freezing(AUTO)
        run = Run(target, rank, clock)
        for step in range(until):
            target.model.get_parameter(Freezing.name).requires_grad_(step not in FROZEN)
            run.steps(1, {"none": 1.0, INT8: 0.8})
        return run.answer()


@pytest.mark.parametrize("until", [FROZEN.stop - 2, FROZEN.stop + 1, SETTLE])
def test_freezing_a_parameter_during_a_trial(launch: Any, until: int) -> None:
    answers = launch(freezing_in_a_trial, 2, until)
    verify(2, answers, FROZEN)
    assert until != SETTLE or answers[0]["choices"][-1] == INT8


def real_time(rank: int, world: int) -> tuple[str, Tensor]:
    """Without a given clock: whatever is chosen, ranks agree, and the first trial ends; drift may begin another."""
    target = DDPTarget("auto(bf16; topk:0.1)")
    results, settled = [], False
    for step in range(SETTLE):
        results.append(target.step(gradients(rank, step)))
        settled = settled or target.handle.settled
    assert settled
    return target.handle.explain(), torch.cat([r["layer.weight"].view(-1) for r in results])


def test_measured_times(launch: Any) -> None:
    answers = launch(real_time, 3)
    assert all(text == answers[0][0] and torch.equal(got, answers[0][1]) for text, got in answers)
    assert "the link reaches" in answers[0][0]


def test_one_process_averages_plainly() -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = grace.attach(optimizer, grace.auto(), named_parameters=model.named_parameters())
    for _ in range(3):
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
    assert handle.settled and handle.stats().choice == "none" and "one process" in handle.explain()


@pytest.mark.parametrize(
    "attach",
    [
        lambda: grace.manual("auto"),
        lambda: grace.manual("none").switch("auto"),
        lambda: grace.LocalSteps(m := torch.nn.Linear(2, 2), torch.optim.SGD(m.parameters(), 0.1), "auto"),
    ],
)
def test_targets_without_steps_of_their_own_reject_it(attach: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match=r"attach one of its methods, such as grace\.bf16\(\)"):
        attach()


def sharded(rank: int, world: int) -> None:
    from handles.targets import FSDPTarget

    with pytest.raises(ConfigError, match="attach one of its methods"):
        FSDPTarget("auto")


def test_sharded_models_reject_it(launch: Any) -> None:
    launch(sharded, 2)


@pytest.mark.parametrize(
    "text, says",
    [
        ("auto(none)", "nothing to choose from"),
        ("auto(auto)", "cannot be a part of auto"),
        ("schedule(0=none; 5=auto)", "cannot be a part of schedule"),
        ("by_parameter(*.bias=none; default=auto)", "cannot be a part of by_parameter"),
        ("auto(int8; every=7)", "at least 100"),
        ("auto(int8; every=500; every=500)", "twice"),
        ("auto:int8", "in brackets"),
        ("auto(int7)", "unknown method"),
    ],
)
def test_invalid_texts(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        grace.parse(text)


def test_it_is_a_value() -> None:
    method = grace.auto(allow=[grace.int8(), grace.none(), grace.powersgd(rank=4), grace.int8()], every=500)
    assert str(method) == "auto(int8; powersgd:4; every=500)"
    assert method == grace.parse(str(method)) == eval(repr(method)) and len({method, eval(repr(method))}) == 1
    assert str(grace.auto()) == "auto" and repr(grace.auto()) == "grace.auto()"
    assert grace.parse("auto()") == grace.auto() != method
    with pytest.raises(ConfigError, match="explain"):
        method.resolve("w", 0)
    for wrong in (grace.int8(), "int8", 3, [3], []):
        with pytest.raises(ConfigError):
            grace.auto(allow=wrong)  # type: ignore[arg-type]
