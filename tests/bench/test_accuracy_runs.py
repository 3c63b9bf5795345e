"""Accuracy studies: gone on with after a kill, and made of runs of `grace train`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.studies import SMALL, study
from grace_dl.bench import results
from grace_dl.cli.main import main
from grace_dl.train.log import read


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


def test_runs_of_training_are_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [word for k, v in SMALL.items() for word in (f"--configs.{k}", v)]
    for name, more in (
        ("plain", []),
        ("local", ["configs/local/sparseloco.py"]),
        ("topk", ["--configs.train.compression", "topk:ratio=0.1"]),
        ("short", ["--configs.train.num_steps", "1"]),
    ):
        path = ["--configs.train.save_path", str(tmp_path / name), "--configs.train.num_epochs", "1"]
        assert main(["train", "--configs", "configs/synthetic.py", *more, *options, *path]) == 0
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
