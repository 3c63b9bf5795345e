"""The demo, small: real workers, the table, the picture and the figures."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from grace_dl.demo.plan import Run, Settings, runs
from grace_dl.demo.run import demo
from grace_dl.workers import Emit, WorkerError, run_workers


def test_demo_end_to_end(tmp_path: Path) -> None:
    out = io.StringIO()
    settings = Settings(data="digits", epochs=3, batch=32)
    results = demo(settings, runs(["topk"]), tmp_path, Console(file=out, width=120))
    plain, topk = results
    assert plain.accuracy > 0.5
    assert topk.sent_per_step < plain.sent_per_step / 4
    assert topk.ratio > 4
    assert plain.ratio == 1
    assert [p.step for p in plain.points] == [p.step for p in topk.points]
    shown = out.getvalue()
    assert "accuracy" in shown and "sent per step" in shown and "step time" in shown and "ratio" in shown
    assert str((tmp_path / "accuracy.png").resolve()) in shown
    assert (tmp_path / "accuracy.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    record = json.loads((tmp_path / "results.json").read_text())
    assert [r["method"] for r in record["results"]] == ["ddp", "topk:0.01"]
    assert record["versions"]["torch"]


def test_runs() -> None:
    assert runs()[0] == Run("ddp") and len(runs()) > 5
    # Momentum is applied once: by the optimizer, or by a method that has its own.
    assert runs(["topk:0.1,powersgd:rank=2", "dgc"]) == [
        Run("ddp"),
        Run("topk:0.1"),
        Run("powersgd:2"),
        Run("dgc:0.001", momentum=0.0),
    ]
    assert runs(["schedule(0=none; 10=signum)"])[1].momentum == 0.0


def fail(rank: int, world: int, emit: Emit) -> None:
    emit("about to fail")
    if rank == 1:
        raise ValueError("unwell")


def die(rank: int, world: int, emit: Emit) -> None:
    import os

    os._exit(3)


def fall_silent(rank: int, world: int, emit: Emit) -> None:
    time.sleep(60)


def test_worker_failures_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WorkerError, match="unwell"):
        run_workers(fail, 2)


def test_worker_deaths_are_told() -> None:
    with pytest.raises(WorkerError, match="exit code 3"):
        run_workers(die, 1)


def test_silent_workers_are_ended_with_their_stacks(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WorkerError, match="for 15 s"):
        run_workers(fall_silent, 1, silence=15)
    assert "fall_silent" in capfd.readouterr().err
