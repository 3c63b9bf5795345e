"""Chooses for the method `auto`: measures steps, decides with all ranks between two steps, and watches what it chose.

Ranks count the same steps, so they come to every decision together. Each brings its own figures; predictions are made by rank
0, and everything else follows from figures that all ranks have received, so all decide alike. Decisions run in
`Session.driver`, on the thread that starts a step, before its first bucket is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..algebra.auto import Auto, Choice
from ..algebra.base import Single
from ..pipeline.driver import StepDriver
from ..plan.cluster import Link
from ..plan.codec_timing import QUICK, measure
from ..plan.codecs import CodecCost, Line
from ..plan.predict import parts_of
from ..session import Session
from . import timing
from .drift import TOLERANCE, drift, link_drift, wider
from .forecast import Forecast, Plan, Setting, choice_of, order, plan_of
from .link import broadcast, gather, link_of, probe
from .report import Arm, Report, heading, label
from .timing import Layout, StepTiming, TimedDriver, merged, summary
from .trial import MOST_CANDIDATES, PLAUSIBLE, TURN, Trial, candidates

WARM_UP = 3
"""Steps that are not counted: DDP rebuilds its buckets, and allocators and caches are cold."""
SAMPLES = 8
"""Steps with plain averaging that are measured before the first decision."""
WINDOW = 16
"""Steps between two checks for drift."""
PROBE_WINDOWS = 3
"""Windows between two probes of the link, while a compressed exchange hides its rate."""
PROBE_SHARE = 0.02
"""Part of the time that probes may take; they become rarer where they would take more."""
AGAIN = 1.05
"""As `PLAUSIBLE`, where nothing has changed since the last decision."""

MEASURING, TRYING, SETTLED = "measuring", "trying", "settled"


class AutoTuner:
    """The tuner of one session."""

    def __init__(self, method: Auto) -> None:
        self._method = method
        self._methods = method.methods
        self._plain = Choice(method.plain)
        self._reset()

    def _reset(self) -> None:
        self._chosen = self._plain
        """The last decision; a trial may use something else meanwhile."""
        self._phase = MEASURING
        self._count = 0
        """Steps of this phase, or of this turn."""
        self._steps = 0
        self._changes = 0
        self._last: float | None = None
        self._samples: list[StepTiming] = []
        self._layout: Layout = ()
        self._device = torch.device("cpu")
        self._costs: list[float] = []
        self._trial: Trial | None = None
        self._baseline: StepTiming | None = None
        self._expected: float | None = None
        """Seconds of a step with the last decision, as its trial found them, until there is a baseline."""
        self._tolerance = TOLERANCE
        self._since_look = 0
        self._since_probe = 0
        self._probe_interval = PROBE_WINDOWS * WINDOW
        self._probed: float | None = None
        """The rate of the link, in bits per second, as the last probe found it."""
        self._learned: dict[Plan, tuple[float, float]] = {}
        """By how much predictions were off, and the rate of the link then."""
        self._report: Report | None = None
        self._told = ""
        """The explanation of a saved decision."""
        self._alone = False

    @property
    def settled(self) -> bool:
        return self._phase == SETTLED

    # Steps --------------------------------------------------------------------------------------------

    def driver(self, session: Session) -> StepDriver:
        if session.transport.size == 1:
            self._alone, self._phase = True, SETTLED
            return StepDriver(session, session.state.furthest)
        if self._count >= self._length:
            start = timing.now()
            self._decide(session)
            if self._last is not None:
                self._last += timing.now() - start  # not part of a step
        return TimedDriver(
            session, session.state.furthest, self._record, keep_layout=self._count + 1 >= self._length
        )

    @property
    def _length(self) -> int:
        """Steps until the next decision."""
        return {MEASURING: WARM_UP + SAMPLES, TRYING: 1 + TURN, SETTLED: WINDOW}[self._phase]

    def _record(self, step: TimedDriver) -> None:
        if self._last is not None and step.ready:
            self._samples.append(step.timing(self._last))
        self._last = step.end
        self._count += 1
        self._steps += 1
        self._since_look += 1
        self._since_probe += 1
        self._device = step.device
        # The plans of a trial are made for one layout.
        if step.layout and self._phase != TRYING and tuple(step.layout) != self._layout:
            self._layout = tuple(step.layout)
            self._learned.clear()

    def _restart(self, phase: str) -> None:
        self._phase, self._count, self._samples = phase, 0, []

    def _decide(self, session: Session) -> None:
        if not self._samples:  # nothing was sent
            self._restart(self._phase)
        elif self._phase == MEASURING:
            self._look(session, "the first steps were measured", self._samples[-SAMPLES:])
        elif self._phase == TRYING:
            self._end_turn(session)
        else:
            self._check(session)

    # A decision ---------------------------------------------------------------------------------------

    def _look(
        self, session: Session, why: str, steps: Sequence[StepTiming], limit: float = PLAUSIBLE
    ) -> None:
        """Predict all plans from what all ranks measured, and start a trial of those that may pay."""
        step, link, costs = self._figures(session, summary(steps))
        current = plan_of(self._chosen, self._layout, self._methods)
        tried, bits = self._predictions(session, step, link, costs, current, limit)
        self._since_look = 0
        self._report = Report(why, step, str(self._chosen), replace(link, bits=bits))
        self._trial = Trial.of(current, step.seconds, tried)
        if tried:
            self._next_turn(session)
        else:
            self._settle(session, 0)

    def _figures(self, session: Session, mine: StepTiming) -> tuple[StepTiming, Link, list[float]]:
        """The step, the link and the costs of codecs, as all ranks together find them."""
        if not self._costs:
            parts = parts_of(self._methods)
            measured = [measure(part, self._device.type, QUICK, timing.now) for part in parts]
            self._costs = [v for cost in measured for v in (*cost.encode, *cost.decode, cost.bits)]
        where, count = self._where(session), len(mine.ready)
        probed = probe(session.transport, where)
        row = [*probed, mine.seconds, mine.tail, *mine.ready, *self._costs]
        rows = gather(session.transport, row, where)
        step = merged([StepTiming(row[2], row[3], tuple(row[4 : 4 + count])) for row in rows])
        link = self._link(session, rows)
        self._probed, self._since_probe = link.bits, 0
        spent = max(3 * row[0] + 2 * row[1] for row in rows)
        self._probe_interval = max(PROBE_WINDOWS * WINDOW, int(spent / PROBE_SHARE / step.seconds))
        return step, link, [sum(values) / len(rows) for values in zip(*(row[4 + count :] for row in rows))]

    def _predictions(
        self,
        session: Session,
        step: StepTiming,
        link: Link,
        costs: Sequence[float],
        current: Plan,
        limit: float,
    ) -> tuple[list[tuple[float, Plan]], float]:
        """The plans to try with their predicted steps, and the rate of the link: rank 0's, on all ranks."""
        count = len(current)
        decision = [0.0] * (2 + MOST_CANDIDATES * (1 + count))
        if session.transport.rank == 0:
            setting = Setting(session.transport.size, self._engine(session), self._device.type)
            known = _costs(parts_of(self._methods), costs)
            forecast = Forecast(self._methods, known, self._layout, step, current, link, setting)
            tried = candidates(self._corrected(forecast), current, step.seconds, limit)
            flat = [float(value) for predicted, plan in tried for value in (predicted, *plan)]
            decision[: 2 + len(flat)] = [len(tried), forecast.link.bits, *flat]
        number, bits, *rest = broadcast(session.transport, decision, self._where(session))
        entries = [rest[at : at + 1 + count] for at in range(0, int(number) * (1 + count), 1 + count)]
        return [(entry[0], tuple(int(method) for method in entry[1:])) for entry in entries], bits

    def _corrected(self, forecast: Forecast) -> list[tuple[float, Plan]]:
        """Ranked plans; what was tried on a similar link is predicted with the error that was seen then."""
        bits = forecast.link.bits
        return sorted(
            ((seconds + self._error(plan, bits), plan) for seconds, plan in forecast.ranked()), key=order
        )

    def _error(self, plan: Plan, bits: float) -> float:
        """By how many seconds the cost model is off for a plan, as far as is known."""
        error, then = self._learned.get(plan, (0.0, bits))
        return error if link_drift(then, bits) is None else 0.0

    # A trial ------------------------------------------------------------------------------------------

    def _next_turn(self, session: Session) -> None:
        trial = self._trial
        assert trial is not None
        self._use(session, trial.plans[trial.queue[0]])
        self._restart(TRYING)

    def _end_turn(self, session: Session) -> None:
        trial = self._trial
        assert trial is not None
        trial.taken[trial.queue.pop(0)].append(summary(self._samples[-TURN:]).seconds)
        if trial.queue:
            self._next_turn(session)
            return
        # Ranks have the same turns, but each its own times.
        mine = [turns[-1] if len(turns) == trial.rounds else 0.0 for turns in trial.taken]
        rows = gather(session.transport, mine, self._where(session))
        for turns, times in zip(trial.taken, zip(*rows)):
            if len(turns) == trial.rounds:
                turns[-1] = max(times)
        if trial.next_round():
            self._next_turn(session)
            return
        self._settle(session, trial.winner((0,) * len(self._layout)))

    def _use(self, session: Session, plan: Plan) -> Choice:
        choice = choice_of(plan, self._layout, self._methods)
        if choice != session.in_use:
            session.use(choice)
        return choice

    def _settle(self, session: Session, kept: int) -> None:
        """End the trial and use the arm `kept`."""
        trial, report = self._trial, self._report
        assert trial is not None and report is not None
        bits = report.link.bits
        for tried, predicted, took in zip(trial.plans, trial.predicted, trial.outcome()):
            if not math.isnan(predicted):
                self._learned[tried] = self._error(tried, bits) + took - predicted, bits
        arms = tuple(
            Arm(label(arm, self._methods), predicted, took, len(turns))
            for arm, predicted, took, turns in zip(trial.plans, trial.predicted, trial.outcome(), trial.taken)
        )
        before = self._chosen
        self._chosen = self._use(session, trial.plans[kept])
        changed = self._chosen != before
        self._changes += changed
        self._tolerance = TOLERANCE if changed else wider(self._tolerance)
        self._report = replace(report, used=arms[0].label, arms=arms, kept=kept)
        self._trial, self._baseline, self._expected = None, None, arms[kept].measured
        self._restart(SETTLED)

    # Watching -----------------------------------------------------------------------------------------

    def _check(self, session: Session) -> None:
        """Compare the steps since the last check with those after the decision, on all ranks."""
        where = self._where(session)
        mine = summary(self._samples)
        # A compressed exchange may fit any link, so its steps would not show that plain averaging pays again.
        probing = self._chosen != self._plain and self._since_probe >= self._probe_interval
        probed = probe(session.transport, where) if probing else (0.0, 0.0)
        rows = gather(session.transport, [*probed, mine.seconds, mine.tail], where)
        step = merged([StepTiming(row[2], row[3], ()) for row in rows])
        why = None
        if self._baseline is not None:
            why = drift(self._baseline, step, self._tolerance)
        elif self._expected is not None:  # what changes during a trial makes its comparison worthless
            why = drift(step._replace(seconds=self._expected), step, self._tolerance)
        self._baseline = self._baseline or step
        if probing:
            self._since_probe = 0
            link = self._link(session, rows)
            if self._probed is None:
                self._probed = link.bits
            if link.bits > self._probed:  # a slower link matters only if steps take longer
                why = why or link_drift(self._probed, link.bits)
        recent = self._samples[-SAMPLES:]  # if half of the window has changed, these have
        if why is not None:
            self._look(session, why, recent)
        elif self._since_look >= self._method.every:
            self._look(session, f"{self._since_look} steps had passed", recent, AGAIN)
        else:
            self._restart(SETTLED)

    # State --------------------------------------------------------------------------------------------

    def explain(self) -> str:
        if self._alone:
            return "auto averages plainly: there is one process, which has nothing to exchange."
        first = heading(self._chosen, self._steps, self._changes)
        if self._phase == MEASURING and self._report is None:
            left = WARM_UP + SAMPLES - self._count
            measured = "plain averaging" if self._chosen == self._plain else self._chosen
            return (
                f"{first}\nIt measures {measured} for {left} more steps before it tries anything."
                + self._told
            )
        trying = ""
        if self._trial is not None:
            arm = self._trial.plans[self._trial.queue[0]]
            trying = f"\nIt is trying {label(arm, self._methods)} at present."
        return first + ("\n" + self._report.text() if self._report else self._told) + trying

    def state_dict(self) -> dict[str, Any]:
        """The choice and its explanation; measurements are made anew after a restart."""
        exceptions = {name: str(method) for method, names in self._chosen.exceptions for name in names}
        return {
            "default": str(self._chosen.default),
            "exceptions": exceptions,
            "settled": self.settled,
            "steps": self._steps,
            "changes": self._changes,
            "since_look": self._since_look,
            "explanation": self._report.text() if self._report else self._told,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Choice:
        by_text = {str(method): method for method in self._methods}
        groups: dict[str, list[str]] = {}
        for name, text in state["exceptions"].items():
            groups.setdefault(text, []).append(name)
        exceptions = tuple((by_text[text], tuple(names)) for text, names in groups.items())
        chosen = Choice(by_text[state["default"]], exceptions)
        steps, changes, since = int(state["steps"]), int(state["changes"]), int(state["since_look"])
        told, settled = str(state["explanation"]), bool(state["settled"])
        self._reset()
        self._chosen, self._told = chosen, "\n" + told if told else ""
        self._steps, self._changes, self._since_look = steps, changes, since
        self._phase = SETTLED if settled else MEASURING
        return chosen

    def _link(self, session: Session, rows: Sequence[Sequence[float]]) -> Link:
        """The link, from probes of all ranks: the last to arrive waits for nobody."""
        small, large = (min(row[place] for row in rows) for place in (0, 1))
        return link_of(small, large, session.transport.size, self._engine(session))

    @staticmethod
    def _engine(session: Session) -> str:
        return "nccl" if session.transport.one_order else "gloo"

    def _where(self, session: Session) -> torch.device:
        """Where figures lie that are exchanged: engines that run on a device take nothing else."""
        return self._device if session.transport.one_order else torch.device("cpu")


def _costs(parts: Sequence[Single], values: Sequence[float]) -> dict[Single, CodecCost]:
    """Codec costs from their numbers, in the order of the parts."""
    size = len(values) // len(parts)
    rows = [values[at : at + size] for at in range(0, len(values), size)]
    return {part: CodecCost(Line(*row[:5]), Line(*row[5:10]), row[10]) for part, row in zip(parts, rows)}
