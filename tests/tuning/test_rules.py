"""How `auto` decides: pure functions of measured and predicted times."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

import grace_dl as grace
from grace_dl.algebra.auto import DEFAULT_ALLOW, Auto
from grace_dl.algebra.base import Method, Single
from grace_dl.pipeline.outline import Load
from grace_dl.plan.cluster import Link
from grace_dl.plan.codecs import FREE, CodecCost, Line, fit
from grace_dl.tuning.drift import TOLERANCE, drift, link_drift, wider
from grace_dl.tuning.forecast import Forecast, Plan, Setting, choice_of, plan_of
from grace_dl.tuning.link import LARGE, link_of
from grace_dl.tuning.report import Arm, Report
from grace_dl.tuning.timing import Layout, StepTiming, merged, summary
from grace_dl.tuning.trial import DECISIVE, MARGIN, MOST_CANDIDATES, Trial, candidates
from grace_dl.tuning.tuner import PROBE_WINDOWS, SAMPLES, WARM_UP, WINDOW, AutoTuner

METHODS: tuple[Method, ...] = (grace.none(), grace.topk(0.01), grace.int8())
PLAIN, TOPK, INT8 = range(3)
BYTES = 4 * 1024 * 1024
LAYOUT: Layout = tuple(((f"w{i}", (1024, 1024), torch.float32),) for i in range(4))
SETTING = Setting(2, "gloo", "cpu")


def forecast(
    measured: StepTiming, rate: float, codec: float = 1e-9, current: Plan = (PLAIN,) * 4
) -> Forecast:
    """A forecast with codecs of `codec` seconds per element, on a link of `rate` bits per second."""
    cost = CodecCost(Line(element=codec), Line(element=codec / 2))
    costs: dict[Single, CodecCost] = {part: cost for method in METHODS for part in method.parts()}
    costs[next(METHODS[0].parts())] = FREE
    return Forecast(METHODS, costs, LAYOUT, measured, current, Link(rate, 1e-5, goodput=1.0), SETTING)


def plain_step(rate: float, backward: float = 0.1) -> StepTiming:
    """A step with plain averaging: each bucket takes its bytes over the rate, one after another."""
    ready = tuple(backward * i / 3 for i in range(4))
    wire, free = 8 * BYTES / rate, 0.0
    for at in ready:
        free = max(free, at) + wire
    return StepTiming(0.2 + free, free - backward, ready)


def test_a_slow_link_pays_and_a_fast_one_does_not() -> None:
    slow = forecast(plain_step(1e8), 1e8)
    assert slow.ranked()[0][1] == (TOPK,) * 4
    assert slow.seconds((TOPK,) * 4) < 0.4 < slow.seconds((PLAIN,) * 4)
    assert slow.seconds((PLAIN,) * 4) == pytest.approx(plain_step(1e8).seconds)
    fast = forecast(plain_step(1e11), 1e11, codec=1e-8)
    assert fast.ranked()[0][1] == (PLAIN,) * 4
    assert candidates(fast.ranked(), (PLAIN,) * 4, plain_step(1e11).seconds, limit=1.0) == []


def test_only_the_buckets_that_show_are_compressed() -> None:
    """Early buckets fit behind the backward pass; encoding them would only cost."""
    step = plain_step(4e8, backward=0.3)
    seconds, plan = forecast(step, 4e8, codec=2e-8).ranked()[0]
    assert plan == (PLAIN, PLAIN, PLAIN, TOPK)
    assert seconds < 0.95 * step.seconds


@pytest.mark.parametrize("rate", [1e8, 3e8, 1e9])
def test_the_link_is_taken_from_what_steps_waited_for(rate: float) -> None:
    """A probe that is off by a factor is corrected where the exchange shows."""
    found = forecast(plain_step(rate, backward=0.03), 5 * rate)
    assert found.link.bits == pytest.approx(rate, rel=0.02)


def test_a_hidden_exchange_leaves_the_probe() -> None:
    hidden = StepTiming(0.4, 0.001, (0.0, 0.1, 0.2, 0.3))
    assert forecast(hidden, 1e10, current=(TOPK,) * 4).link.bits == 1e10


def test_methods_that_cannot_be_predicted_come_last() -> None:
    ranked = [(math.nan, (1,)), (0.5, (2,))]
    assert candidates(sorted(ranked, key=lambda e: math.isnan(e[0])), (0,), 1.0) == [(0.5, (2,)), ranked[0]]


def played(predicted: Sequence[float], really: Sequence[float]) -> tuple[int, int]:
    """A trial with the given times, of what is in use first: the arm that is kept, and the steps it took."""
    plans = [(arm,) for arm in range(len(really))]
    trial = Trial.of(plans[0], really[0], list(zip(predicted, plans))[1:])
    turns = 0
    while True:
        while trial.queue:
            arm = trial.queue.pop(0)
            trial.taken[arm].append(really[arm])
            turns += 1
        if not trial.next_round():
            return trial.winner((0,)), 4 * turns


@pytest.mark.parametrize(
    "predicted, really, kept",
    [
        pytest.param([1.0, 0.5], [1.0, 0.5], 1, id="pays"),
        pytest.param([1.0, 0.9], [1.0, 0.985], 0, id="does not pay enough"),
        pytest.param([1.0, 0.5, 0.6], [1.0, 1.3, 0.7], 2, id="the best prediction is wrong"),
        pytest.param([1.0, 0.5, 0.6], [1.0, 1.3, 1.2], 0, id="all predictions are wrong"),
        pytest.param([1.0, 1.2, 1.2], [1.0, 0.8, 0.5], 2, id="better than predicted"),
        pytest.param([50.0, 1.0, 2.0], [50.0, 1.0, 2.0], 1, id="far better"),
    ],
)
def test_a_trial_corrects_predictions(predicted: list[float], really: list[float], kept: int) -> None:
    winner, steps = played(predicted, really)
    assert winner == kept
    assert steps <= 40


def test_the_longest_trial_settles_within_60_steps() -> None:
    arms = MOST_CANDIDATES + 1
    _, steps = played([1.0] * arms, [1.0 - 0.01 * arm for arm in range(arms)])
    assert WARM_UP + SAMPLES + steps <= 60


def test_a_change_of_the_link_is_followed_within_100_steps() -> None:
    """At worst it is noticed by the next probe, or in the window after the one in which it happened."""
    arms = MOST_CANDIDATES + 1
    _, trial = played([1.0] * arms, [1.0 - 0.01 * arm for arm in range(arms)])
    assert max(PROBE_WINDOWS * WINDOW, 2 * WINDOW) + trial <= 100


def test_everything_that_auto_allows_by_default_may_be_tried_at_once() -> None:
    ranked = [(1.0 + 0.05 * place, (place, place)) for place in range(1 + len(DEFAULT_ALLOW))]
    mixture = 0.9, (0, 1)
    assert len(candidates([mixture, *ranked], (0, 0), 1.0)) == len(DEFAULT_ALLOW) + 1


def test_a_clear_winner_spares_what_is_in_use_another_turn() -> None:
    trial = Trial.of((0,), 10.0, [(1.0, (1,))])
    trial.queue.clear()
    trial.taken[1].append(10.0 / DECISIVE[0] - 1)
    assert not trial.next_round()


def test_a_third_turn_decides_between_arms_that_are_close() -> None:
    """One disturbed turn of three does not decide."""
    trial = Trial.of((0,), 1.0, [(0.9, (1,)), (0.9, (2,))])
    really = {0: [1.0, 1.0, 1.0], 1: [0.9, 1.2, 0.9], 2: [0.95, 0.95, 0.95]}
    for turn in range(3):
        for arm in trial.queue:
            trial.taken[arm].append(really[arm][turn])
        trial.queue.clear()
        if turn == 1:  # the disturbed arm is still among those that are close
            assert [len(turns) for turns in trial.taken] == [2, 2, 2]
        assert trial.next_round() == (turn < 2)
    assert trial.winner((0,)) == 1
    # An arm that is clearly slower gets no third turn.
    trial = Trial.of((0,), 1.3, [(0.9, (1,))])
    for _ in range(2):
        for arm in trial.queue:
            trial.taken[arm].append((1.3, 0.9)[arm])
        trial.queue.clear()
        again = trial.next_round()
    assert not again and trial.winner((0,)) == 1


def test_plain_averaging_needs_no_margin_to_return() -> None:
    trial = Trial.of((1,), 1.0, [(1.0, (0,)), (1.0, (2,))])
    trial.queue.clear()
    for arm, took in ((1, 0.99), (2, 0.99 * MARGIN)):
        trial.taken[arm].append(took)
    assert trial.plans[trial.winner((0,))] == (2,)
    for took in (1.0, 0.98):  # too little for a method, which must not protect the one that is in use
        trial.taken[2] = [took]
        assert trial.plans[trial.winner((0,))] == (0,)


def test_drift() -> None:
    before = StepTiming(0.1, 0.01, ())
    for after in (StepTiming(0.115, 0.01, ()), StepTiming(0.09, 0.02, ())):
        assert drift(before, after) is None
    assert "1.50 ×" in str(drift(before, StepTiming(0.15, 0.06, ())))
    assert "0.50 ×" in str(drift(before, StepTiming(0.05, 0.0, ())))
    assert "less" in str(drift(StepTiming(0.1, 0.05, ()), StepTiming(0.09, 0.01, ())))
    tolerance = TOLERANCE
    for _ in range(9):
        tolerance = wider(tolerance)
    assert drift(before, StepTiming(0.15, 0.01, ()), tolerance) is None
    assert drift(before, StepTiming(0.2, 0.1, ()), tolerance) is not None
    assert link_drift(1e10, 1e8) == "the link became 100 × as slow"
    assert link_drift(1e10, 2e10) is None


def test_figures_of_several_steps_and_ranks() -> None:
    steps = [
        StepTiming(9.0, 9.0, (0.0,)),
        StepTiming(1.0, 0.2, (0.0, 0.5)),
        StepTiming(3.0, 0.1, (0.0, 0.7)),
        StepTiming(1.1, 0.3, (0.0, 0.6)),
    ]
    assert summary(steps) == StepTiming(1.1, 0.2, (0.0, 0.6))
    assert merged(steps[1:3]) == StepTiming(3.0, 0.1, (0.0, 0.7))


def test_a_link_from_two_all_reduces() -> None:
    found = link_of(4e-4, 4e-4 + 8 * 2 * 4 * LARGE * (3 / 4) / 1e9, 4, "gloo")
    assert found.bits == pytest.approx(1e9, rel=0.01) and found.latency == pytest.approx(4e-4 / 6)


def test_plans_and_choices() -> None:
    plan = (PLAIN, TOPK, TOPK, INT8)
    choice = choice_of(plan, LAYOUT, METHODS)
    assert [choice.method_of(f"w{i}") for i in range(4)] == [METHODS[m] for m in plan]
    assert choice.method_of("added later") == METHODS[TOPK]
    assert plan_of(choice, LAYOUT, METHODS) == plan
    assert str(choice) == "none for 1 parameter; int8 for 1 parameter; topk:0.01 for the others"
    assert str(choice_of((INT8,) * 4, LAYOUT, METHODS)) == "int8"


def test_plans_that_read_alike_are_told_apart() -> None:
    """Two mixtures may compress as many buckets, but others."""
    arms = tuple(Arm("none for 1 bucket, int8 for 1 bucket", 1.0, took, 3) for took in (1.0, 0.5))
    link, step = Link(1e9, 1e-5), StepTiming(1.0, 0.1, ())
    text = Report("it was time", step, arms[0].label, link, arms, kept=1).text()
    assert "took 0.50 of the time of" in text and "stays" not in text


def test_a_trial_that_was_interrupted_goes_on_with_what_was_in_use() -> None:
    method = grace.auto((grace.int8(),))
    assert isinstance(method, Auto)
    saved = {**AutoTuner(method).state_dict(), "default": "int8"}
    resumed = AutoTuner(method)
    resumed.load_state_dict(saved)
    assert f"It measures int8 for {WARM_UP + SAMPLES} more steps" in resumed.explain()


def test_a_codec_too_fast_for_the_clock_costs_nothing() -> None:
    line = fit([Load(1, 1000), Load(1, 100_000), Load(50, 100_000)], [0.0, 0.0, 0.0])
    assert line.seconds(Load(50, 100_000)) < 1e-6
