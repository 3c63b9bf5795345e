"""Accuracy studies: real short runs, compared, and with links of a rate."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench.studies import study
from grace_dl.bench import accuracy, results
from grace_dl.bench.virtual_hosts import able
from grace_dl.cli.main import main

DGC = "dgc:0.05,warmup_stages=2,warmup_steps=2"


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--methods", "topk:7"], "ratio=7"),
        (["--methods", "topk:rank=4"], "rank"),
        (["--methods", "ddp-fp16"], "baseline"),
        (["--rate", "fast"], "100mbit"),
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
