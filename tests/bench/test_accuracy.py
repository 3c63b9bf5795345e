"""Accuracy studies: real short runs, gone on with after a kill, imported from training, and summed up right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from grace_dl.bench import accuracy, results, run_records, summary
from grace_dl.bench.virtual_hosts import able
from grace_dl.cli.main import main
from grace_dl.errors import GraceError
from grace_dl.train.log import read

SMALL = {
    "dataset.shape": "[3,8,8]",
    "dataset.size": "192",
    "dataset.test_size": "64",
    "model.width": "48",
    "train.batch_size": "16",
    "train.log_every": "2",
}
TASK = ["--task", "synthetic", *(word for k, v in SMALL.items() for word in (f"--configs.{k}", v))]
DGC = "dgc:0.05,warmup_stages=2,warmup_steps=2"


def study(out: Path, *more: str) -> list[str]:
    return ["bench", "accuracy", *TASK, "--epochs", "2", "--out", str(out), *more]


@pytest.mark.slow
def test_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "study.json"
    command = study(out, "--seeds", "1,2", "--methods", DGC)
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "6 of 6" in shown and "left" in shown and DGC in "".join(shown.split())
    records = {(r["method"], r["seed"]): r for r in results.load(out)["records"]}
    assert set(records) == {(label, seed) for label in ("ddp", "bf16", DGC) for seed in (1, 2)}
    for record in records.values():
        assert record["timed"] and record["failed"] is None and record["task"] == "mlp on Synthetic"
        assert [p["epoch"] for p in record["curve"]] == [1, 2] and record["steps"] == 12
        assert 0 < record["curve"][0]["seconds"] < record["curve"][1]["seconds"] == record["seconds"]
        assert record["accuracy"] == record["curve"][1]["accuracy"] <= record["best_accuracy"] <= 1
    # Every step sends as much as every other, and bf16 half of it.
    plain, half = records["ddp", 1], records["bf16", 1]
    assert plain["curve"][1]["bytes"] == 2 * plain["curve"][0]["bytes"] == 12 * 4 * plain["parameters"]
    assert half["leaving_bytes"] == pytest.approx(plain["leaving_bytes"] / 2, rel=0.01)
    assert records[DGC, 1]["leaving_bytes"] < half["leaving_bytes"]
    # Momentum is in the memory, as the authors of the method have it.
    folder = next(tmp_path.glob("study/*dgc*_1"))
    tree = json.loads((folder / "config.json").read_text())["configs"]["train"]
    assert tree["optimizer"]["()"].endswith("DGCSGD") and tree["compression"] == DGC
    assert not (folder / "checkpoints").exists()

    def never(*arguments: Any, **more: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(accuracy, "run_workers", never)
    assert main(command) == 0
    # The same method with other settings is another method.
    with pytest.raises(AssertionError, match="trained again"):
        main(study(out, "--seeds", "1,2", "--methods", DGC.replace("0.05", "0.06")))


@pytest.mark.slow
def test_a_killed_study_goes_on_at_its_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "study.json"
    more = [
        "--configs.train.save_every_steps",
        "2",
        "--configs.train.num_steps",
        "4000",
        "--configs.dataset.size",
        "64000",
    ]
    command = [sys.executable, "-m", "grace_dl.cli", *study(out, "--seeds", "1", "--methods", "int8", *more)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    try:
        while not list(tmp_path.glob("study/*_ddp_*/checkpoints/step*0.rank1of2.pt")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not out.exists()
    log = next(tmp_path.glob("study/*_ddp_*")) / "log.jsonl"
    before = [r for r in read(log) if r["step"] <= 4]
    assert before
    # The number of steps is free to change: enough for an end, and for what was done to be seen.
    done = max(r["step"] for r in read(log))
    short = [w if w != "4000" else str(done + 20) for w in command]
    subprocess.run(short, env=environment, check=True, timeout=200, stdout=subprocess.DEVNULL)
    assert len(results.load(out)["records"]) == 3
    assert [r for r in read(log) if r["step"] <= 4] == before


@pytest.mark.slow
def test_local_steps_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "study.json"
    rule = "local(int4; every=4; outer_lr=0.7; outer_momentum=0.9)"
    assert main(study(out, "--seeds", "1", "--methods", "ddp", "int4", "diloco:4")) == 0
    records = {r["method"]: r for r in results.load(out)["records"]}
    assert set(records) == {"ddp", "int4", rule}
    # Twelve steps: three rounds, and one exchange more at the end of the run.
    assert records[rule]["leaving_bytes"] == pytest.approx(records["int4"]["leaving_bytes"] / 3, rel=0.05)
    assert records[rule]["loss"] == records[rule]["curve"][-1]["loss"] > 0
    assert main(["report", str(out), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert all(f"Loss against {what}" in page for what in ("bytes sent", "training time")) and rule in page


def test_runs_of_training_are_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [word for k, v in SMALL.items() for word in (f"--configs.{k}", v)]
    for name, more in (
        ("plain", []),
        ("local", ["--configs", "configs/synthetic.py", "configs/local/sparseloco.py"]),
        ("topk", ["--configs.train.compression", "topk:ratio=0.1"]),
        ("short", ["--configs.train.num_steps", "1"]),
    ):
        path = ["--configs.train.save_path", str(tmp_path / name), "--configs.train.num_epochs", "1"]
        assert main(["train", "--configs", "configs/synthetic.py", *options, *path, *more]) == 0
    # As if it had been interrupted.
    record = json.loads((tmp_path / "short/config.json").read_text())
    (tmp_path / "short/config.json").write_text(json.dumps({**record, "steps": 12}))
    out = tmp_path / "x.json"
    folders = [str(tmp_path / name) for name in ("plain", "local", "topk", "short")]
    assert main(["bench", "accuracy", "--from-runs", *folders, "--out", str(out)]) == 0
    assert "step 1 of 12" in capsys.readouterr().out
    records = {r["method"]: r for r in results.load(out)["records"]}
    assert set(records) == {"ddp", "local(chunktopk:64,beta=0.95; every=30)", "topk:0.1"}
    assert not records["topk:0.1"]["timed"] and records["topk:0.1"]["rate"] == "loopback"
    assert records["topk:0.1"]["accuracy"] == read(tmp_path / "topk/log.jsonl")[-1]["acc/test_top1"]
    assert main(["bench", "accuracy", "--from-runs", str(tmp_path), "--out", str(out)]) == 2
    assert "config.json" in capsys.readouterr().err


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
    target = summary.default_target(records)
    assert target == pytest.approx(0.79)
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


def test_times_of_another_link() -> None:
    """Two timed epochs lend their times to a curve of four; a training that differs is refused."""

    def steps(record: dict[str, Any]) -> dict[str, Any]:
        curve = [{**p, "epoch": i, "step": 10 * i} for i, p in enumerate(record["curve"], 1)]
        return {**record, "curve": curve}

    known = steps(fake("topk", 1, [(1, 0.5), (2, 0.6), (3, 0.7), (4, 0.8)]))
    timed = steps(fake("topk", 1, [(30, 0.5), (50, 0.6)], rate="100mbit"))
    found = run_records.retimed(known, timed)
    assert [p["seconds"] for p in found["curve"]] == [30, 50, 70, 90] and found["seconds"] == 90
    assert [p["accuracy"] for p in found["curve"]] == [0.5, 0.6, 0.7, 0.8]
    with pytest.raises(GraceError, match="--timed-epochs"):
        run_records.retimed(known, steps(fake("topk", 1, [(30, 0.5), (50, 0.61)], rate="100mbit")))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--methods", "topk:7"], "ratio=7"),
        (["--methods", "topk:rank=4"], "rank"),
        (["--methods", "ddp-fp16"], "baseline"),
        (["--rate", "fast"], "100mbit"),
        (["--task", "cifarr"], "no config file"),
    ],
)
def test_bad_requests_are_refused(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(study(tmp_path / "x.json", *options)) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(able() is not None, reason=f"hosts with links of a rate cannot be made here: {able()}")
def test_links(tmp_path: Path) -> None:
    out = tmp_path / "study.json"
    command = study(out, "--seeds", "1", "--methods", "bf16", "--rate", "2mbit,loopback")
    assert main(command) == 0
    records = {(r["rate"], r["method"]): r for r in results.load(out)["records"]}
    assert len(records) == 4
    slow, fast = (records[rate, "ddp"] for rate in ("2mbit", "loopback"))
    # 12 steps of 47 kB, less a burst of 256 kB, take 1.2 s at 2 Mbit/s; the training is the same.
    assert slow["seconds"] > 1.0
    assert [p["accuracy"] for p in slow["curve"]] == [p["accuracy"] for p in fast["curve"]]
    assert not list(Path("/run/netns").glob(f"grace-{os.getpid()}-*"))
