"""Accuracy studies are summed up right."""

from __future__ import annotations

from typing import Any

import pytest

from grace_dl.bench import run_records, summary
from grace_dl.bench.target import LOSS, Target
from grace_dl.errors import ConfigError, GraceError


def fake(method: str, seed: int, points: list[tuple[float, float]], rate: str = "1gbit") -> dict[str, Any]:
    curve = [{"seconds": s, "accuracy": a, "bytes": 10.0 * s} for s, a in points]
    end = points[-1]
    facts = {"task": "t", "epochs": len(points), "workers": 2, "rate": rate, "bits": 1e9}
    ends = {"accuracy": end[1], "seconds": end[0], "leaving_bytes": 10 * end[0]}
    return {**facts, **ends, "method": method, "seed": seed, "timed": True, "failed": None, "curve": curve}


def test_summary() -> None:
    records = [
        fake("ddp", 1, [(10, 0.5), (20, 0.8)]),
        fake("ddp", 2, [(10, 0.5), (20, 0.9)]),
        fake("bf16", 1, [(6, 0.5), (12, 0.85)]),
        fake("topk", 1, [(2, 0.4), (4, 0.79)]),
        fake("sign", 1, [(2, 0.1), (4, 0.2)]),
        {**fake("nan", 1, [(2, 0.1)]), "failed": "the run has diverged", "accuracy": None, "seconds": None},
    ]
    target = Target.default(records)
    assert target is not None and target.value == pytest.approx(0.79)
    rows = {row.label: row for row in summary.rows(records, "1gbit", target)}
    assert list(rows)[:3] == ["topk", "bf16", "ddp"]
    assert rows["ddp"].accuracy == pytest.approx(0.85) and rows["ddp"].spread == pytest.approx(
        0.0707, rel=1e-2
    )
    assert (
        rows["topk"].seconds_to_target == 4
        and rows["topk"].speedup == 5
        and rows["topk"].speedup_over_bf16 == 3
    )
    assert rows["topk"].gap == pytest.approx(-0.06) and not rows["topk"].loses
    assert rows["sign"].seconds_to_target is None and rows["sign"].loses and rows["nan"].loses


def judged_by_loss(method: str, seed: int, points: list[tuple[float, float]]) -> dict[str, Any]:
    record = fake(method, seed, [(seconds, 0.5) for seconds, _ in points])
    curve = [{**p, "loss": loss} for p, (_, loss) in zip(record["curve"], points)]
    return {**record, "judged_by": LOSS, "loss": points[-1][1], "curve": curve}


def test_target_of_loss() -> None:
    """Tasks judged by their loss: the default target is one percent above plain DDP, and lower is better."""
    records = [
        judged_by_loss("ddp", 1, [(10, 3.0), (20, 2.0)]),
        judged_by_loss("ddp", 2, [(10, 3.0), (20, 1.9)]),
        judged_by_loss("topk", 1, [(2, 2.5), (4, 2.01)]),
        judged_by_loss("sign", 1, [(2, 2.5), (4, 2.1)]),
    ]
    target = Target.default(records)
    assert target is not None and target.value == pytest.approx(2.02) and str(target) == "a loss of 2.0200"
    rows = summary.rows(records, "1gbit", target)
    assert [row.label for row in rows] == ["topk", "ddp", "sign"]
    assert rows[0].seconds_to_target == 4 and rows[0].speedup == 5
    assert rows[1].loss_spread == pytest.approx(0.0707, rel=1e-2)
    assert rows[2].seconds_to_target is None and rows[2].loses
    without = [{**r, "loss": None, "curve": [{"seconds": 1.0, "accuracy": 0.5}]} for r in records]
    assert Target.default(without) is None
    assert summary.rows(without, "1gbit", Target(2.0, LOSS))[0].reached == 0


def test_target_from_the_command_line() -> None:
    assert Target.asked(65, "accuracy") == Target(0.65) and Target.asked(165, LOSS) == Target(165, LOSS)
    with pytest.raises(ConfigError, match="--target 165"):
        Target.asked(165, "accuracy")


def test_times_of_another_link() -> None:
    """Two timed epochs lend their times to a curve of four; a training that differs is refused."""

    def steps(record: dict[str, Any]) -> dict[str, Any]:
        curve = [{**p, "epoch": i, "step": 10 * i} for i, p in enumerate(record["curve"], 1)]
        return {**record, "curve": curve}

    def log(seconds: dict[int, float], second_loss: float = 2.5) -> run_records.Logged:
        return run_records.Logged(seconds, dict(zip(seconds, (3.0, second_loss, 2.0, 1.5))))

    known = steps(fake("topk", 1, [(1, 0.5), (2, 0.6), (3, 0.7), (4, 0.8)]))
    full = log({10: 1.0, 20: 2.0, 30: 3.0, 40: 4.0})
    timed = steps(fake("topk", 1, [(30, 0.5), (50, 0.6)], rate="100mbit"))
    found = run_records.retimed(known, full, timed, log({10: 30.0, 20: 50.0}))
    assert [p["seconds"] for p in found["curve"]] == [30, 50, 70, 90] and found["seconds"] == 90
    assert [p["accuracy"] for p in found["curve"]] == [0.5, 0.6, 0.7, 0.8]
    with pytest.raises(GraceError, match="--timed-epochs"):
        differs = steps(fake("topk", 1, [(30, 0.5), (50, 0.61)], rate="100mbit"))
        run_records.retimed(known, full, differs, log({10: 30.0, 20: 50.0}))


def test_times_of_a_part_of_an_epoch() -> None:
    """The pace is that of the second half of the timed steps, without the slow start; losses of training are compared."""
    curve = [{"epoch": i, "step": 100 * i, "seconds": float(i), "accuracy": 0.5} for i in (1, 2)]
    known = {**fake("topk", 1, [(1, 0.5), (2, 0.5)]), "curve": curve}
    end = {"epoch": 1, "step": 40, "seconds": 50.0, "accuracy": 0.4}
    timed = {**fake("topk", 1, [(50, 0.4)], rate="100mbit"), "curve": [end]}
    losses = {10: 3.0, 20: 2.0, 30: 1.9, 40: 1.8}
    full = run_records.Logged({}, losses)
    short = run_records.Logged({10: 20.0, 20: 30.0, 30: 40.0, 40: 50.0}, losses)
    found = run_records.retimed(known, full, timed, short)
    assert [p["seconds"] for p in found["curve"]] == [110, 210]
    other = run_records.Logged(short.seconds, {**losses, 20: 2.1})
    with pytest.raises(GraceError, match="--timed-epochs"):
        run_records.retimed(known, full, timed, other)
