"""The demo, small: real workers and links, the tables, the pictures, the figures and the verdict."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from grace_dl.bench import virtual_hosts
from grace_dl.bench.virtual_hosts import able
from grace_dl.demonstration.plan import Result, Run, Settings, runs
from grace_dl.demonstration.run import demo
from grace_dl.demonstration.summary import verdict
from grace_dl.errors import ConfigError
from grace_dl.workers import Emit, WorkerError, run_workers


def test_demo_end_to_end(tmp_path: Path) -> None:
    out = io.StringIO()
    rates = ["loopback", "100mbit"]
    settings = Settings(task="digits", epochs=3, batch_size=32, rates=rates, seconds=0.2)
    console = Console(file=out, width=140)
    results = demo(settings, runs(["topk"]), tmp_path / "results.json", console)
    plain, topk, slow, slow_topk = results
    assert [(r.network, r.method) for r in results] == [(n, m) for n in rates for m in ("ddp", "topk:0.01")]
    assert plain.accuracy > 0.5 and plain.timed == plain.steps
    assert topk.sent_per_step < plain.sent_per_step / 4 and plain.ratio == 1 < topk.ratio
    assert [p.step for p in plain.points] == [p.step for p in topk.points]
    # Accuracy is that of the first network: where links can be made, the parameters were compared.
    assert slow.accuracy == plain.accuracy and slow_topk.accuracy == topk.accuracy
    if able() is None:
        assert slow.timed >= 10 and slow.digest == plain.digest and slow_topk.digest == topk.digest
    shown = out.getvalue()
    assert "accuracy" in shown and "sent per step" in shown and "a 100 Mbit/s link" in shown
    last, where = shown.strip().splitlines()[-2:]
    assert last.startswith("On a 100 Mbit/s link, ") and "plain DDP" in last and "accuracy." in last
    assert where.startswith("Links on which compression would have paid here") and "topk:0.01" in where
    for ending in (".json", ".html", ".png"):
        assert str((tmp_path / f"results{ending}").resolve()) in shown
    assert (tmp_path / "results.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    page = (tmp_path / "results.html").read_text()
    assert "In short" in page and last.split(",")[1].strip() in page
    record = json.loads((tmp_path / "results.json").read_text())
    assert [r["method"] for r in record["results"]] == ["ddp", "topk:0.01"] * 2
    assert record["machine"]["torch"] and record["machine"]["kernels"]
    assert record["verdict"] == [line for line in shown.splitlines() if line in record["verdict"]]
    assert last in record["verdict"]


def result(method: str, network: str, seconds: float, accuracy: float) -> Result:
    return Result(method, network, 100, 50, 1000, 10.0, 4000.0, seconds / 100, accuracy)


def test_the_verdict_names_the_fastest_at_about_the_same_accuracy() -> None:
    results = [
        *(result("ddp", "loopback", 10, 0.88), result("topk", "loopback", 20, 0.88)),
        *(result("ddp", "100mbit", 100, 0.88), result("topk", "100mbit", 20, 0.875)),
        result("crude", "100mbit", 10, 0.5),
    ]
    first, second, pays = verdict(results)
    assert first == (
        "On loopback (no link), no method was faster than plain DDP: topk took 2.00 × as long, at 88.00 % against 88.00 % "
        "accuracy."
    )
    assert second == (
        "On a 100 Mbit/s link, topk trained 5.00 × faster than plain DDP, at 87.50 % against 88.00 % accuracy."
    )
    assert pays == (
        "Links on which compression would have paid here, by these step times: topk below about 900 Mbit/s."
    )


def test_the_verdict_says_for_which_links_each_method_pays() -> None:
    def on(network: str, plain: float, **methods: float) -> list[Result]:
        return [
            result("ddp", network, plain, 0.88),
            *(result(m, network, s, 0.88) for m, s in methods.items()),
        ]

    gigabit = on("1gbit", 20, never=21, always=10, crude=5)
    slow = on("100mbit", 110, never=120, always=50, crude=5)
    gigabit[-1].accuracy = slow[-1].accuracy = 0.5
    said = [*verdict([*gigabit, *slow])][-1]
    assert said.endswith("by these step times: never on none of these links; always up to at least 1 Gbit/s.")
    fast = on("loopback", 10, never=11, always=9)
    assert [*verdict([*fast, *gigabit[:3], *slow[:3]])][-1].endswith("always on every link.")
    assert len([*verdict(fast)]) == 1, "without a link, nothing is known about links"


def test_a_batch_of_more_images_than_there_are_is_rejected(tmp_path: Path) -> None:
    settings = Settings(task="digits", batch_size=1000, rates=["loopback"])
    with pytest.raises(ConfigError, match=r"--batch-size 1000 on 2 workers.*give at most 750"):
        demo(settings, runs(["topk"]), tmp_path / "results.json", Console(file=io.StringIO()))


def test_networks_that_cannot_be_made_are_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(virtual_hosts, "able", lambda: "the kernel says no")
    out = io.StringIO()
    settings = Settings(task="digits", epochs=0.5, batch_size=32, workers=1, rates=["loopback", "10mbit"])
    results = demo(settings, runs(["topk"]), tmp_path / "results.json", Console(file=out, width=140))
    assert "a 10 Mbit/s link cannot be made here" in out.getvalue() and "the kernel says no" in out.getvalue()
    assert [r.timed for r in results[2:]] == [0, 0] and all(r.step_seconds > 0 for r in results)
    assert "estimated by `grace plan`" in out.getvalue()
    assert "On a 10 Mbit/s link, topk:0.01 would train" in out.getvalue() and "by estimate" in out.getvalue()


def test_runs() -> None:
    assert runs()[0] == Run("ddp") and len(runs()) == 4
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
