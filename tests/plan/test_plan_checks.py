"""`grace plan --validate` and `--check`: the cost model beside measurements."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grace_dl.bench.plan_check import Comparison, Links
from grace_dl.bench.plan_validation import COLUMNS, Measurements, exchange_factor, rank_correlation
from grace_dl.bench.virtual_hosts import UNLIMITED_BITS
from grace_dl.cli import plan_checks
from grace_dl.cli.main import main
from grace_dl.plan.confidence import LARGE_ERROR, TYPICAL_ERROR


def write_data(path: Path) -> None:
    """Measurements that follow the model exactly: 1 ms of computing, 2 ms a payload, codecs of 0.5 ms."""
    rows = []

    def row(
        method: str,
        ratio: str,
        exchange: str,
        workers: int,
        seconds: float,
        mode: str = "throughput",
        volume: str = "",
    ) -> None:
        throughput = str(workers / seconds)
        rows.append(
            dict(
                zip(
                    COLUMNS,
                    ("net", method, ratio, "true", str(workers), "mpi", exchange, mode, throughput, volume),
                )
            )
        )

    for workers in (1, 2, 4, 8):
        row("none", "n/a", "allreduce", workers, 1e-3 + 2e-3 * exchange_factor("allreduce", workers))
        for ratio in (0.01, 0.5):
            if workers == 8 or (ratio == 0.01 and workers > 1):
                row(
                    "topk",
                    str(ratio),
                    "allgather",
                    workers,
                    1.5e-3 + 4e-3 * ratio * exchange_factor("allgather", workers),
                )
    row("none", "n/a", "allreduce", 8, 1.0, "data-volume", "1000")
    for ratio in (0.01, 0.5):
        row("topk", str(ratio), "allgather", 8, 1.0, "data-volume", str(2000 * ratio))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def test_measurements_that_follow_the_model_are_predicted_exactly(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    write_data(path)
    checks = Measurements(path).check("net")
    assert {(check.case.label, check.fitted) for check in checks} == {
        ("none", True),
        ("topk:0.01", True),
        ("topk:0.5", False),
    }
    for check in checks:
        assert check.predicted == pytest.approx(check.measured, rel=1e-6)
    assert rank_correlation(checks) == 1


def test_the_command_shows_and_saves_the_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "data.csv", tmp_path / "made" / "validation.json"
    write_data(path)
    assert main(["plan", "--validate", str(path), "--out", str(out)]) == 0
    assert "fitted on fewer workers: 2 settings" in capsys.readouterr().out
    assert len(json.loads(out.read_text())["records"]) == 3


def published(root: Path, name: str) -> list[dict[str, Any]]:
    return json.loads((root / "benchmarks" / name).read_text())["records"]


def errors(records: list[dict[str, Any]]) -> list[float]:
    return sorted(abs(r["predicted"] / r["measured"] - 1) for r in records)


def test_errors_on_links_are_those_that_verdicts_state(root: Path) -> None:
    records = published(root, "plan-links.json")
    found = errors(records)
    assert found[len(found) // 2] <= TYPICAL_ERROR
    assert found[int(0.9 * len(found))] <= LARGE_ERROR
    assert {r["model"] for r in records} == {"transformer", "cnn"}


def test_the_published_validation_keeps_its_promises(root: Path) -> None:
    records = published(root, "plan-public.json")
    fitted = errors([r for r in records if r["fitted"]])
    assert fitted[len(fitted) // 2] <= TYPICAL_ERROR
    assert fitted[int(0.9 * len(fitted))] <= LARGE_ERROR + 0.005
    assert {r["model"] for r in records} == {
        "LSTM",
        "densenet40_k12",
        "ncf",
        "resnet20_v2",
        "resnet50",
        "unet",
        "vgg19",
    }


@pytest.mark.parametrize(
    "content, message", [("a,b\n1,2\n", "has no column"), ("", "has no column"), (None, "cannot be read")]
)
def test_other_files_are_rejected(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data.csv"
    if content is not None:
        path.write_text(content)
    assert main(["plan", "--validate", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_measured_links_are_predicted(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((root / "benchmarks" / "link-cnn.json").read_text())
    content["records"] = [
        r for r in content["records"] if r["method"] in ("ddp", "ddp-fp16", "int8") and r["rate"] == "100mbit"
    ]
    for record in content["records"]:
        record["model"] = "small-shapes"
    path, out = tmp_path / "link.json", tmp_path / "check.json"
    path.write_text(json.dumps(content))
    assert main(["plan", "--check", str(path), "--out", str(out)]) == 0
    assert "2 steps: median error" in capsys.readouterr().out
    assert [record["method"] for record in json.loads(out.read_text())["records"]] == ["ddp", "int8"]
    page = tmp_path / "report.html"
    assert main(["report", str(out), str(root / "benchmarks" / "plan-public.json"), "--out", str(page)]) == 0
    assert "Predictions beside measured steps" in page.read_text()
    capsys.readouterr()
    assert main(["plan", "--check", str(out)]) == 2
    assert "--check takes those of `grace bench link`" in capsys.readouterr().err
    assert main(["plan", "--check", str(tmp_path / "none.json")]) == 2


def test_measured_local_steps_are_predicted(tmp_path: Path, root: Path) -> None:
    content = json.loads((root / "benchmarks" / "link-local-4.json").read_text())
    content["records"] = [r for r in content["records"] if "int4" in r["method"]]
    for record in content["records"]:
        record |= {"model": "small-shapes", "reference_seconds": 0.2}
        record["link"]["bits"] = 1e5  # an exchange takes half a minute, so the time of codecs does not matter
    path, out = tmp_path / "link.json", tmp_path / "check.json"
    path.write_text(json.dumps(content))
    assert main(["plan", "--check", str(path), "--out", str(out)]) == 0
    at_once, local, late = (record["predicted"] for record in json.loads(out.read_text())["records"])
    assert 0.2 < late < local < at_once
    assert 30 * (local - 0.2) == pytest.approx(at_once, rel=0.2)
    assert 30 * (local - late) == pytest.approx(15 * 0.2, rel=0.2)


def test_links_are_those_that_a_probe_found_and_share_the_cores_of_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def record(workers: int, bits: float, reached: float) -> dict[str, Any]:
        return {"workers": workers, "bits": bits, "link": {"bits": reached, "latency": 1e-4}}

    records = [record(2, 1e9, 0.9e9), record(2, UNLIMITED_BITS, 16e9), record(4, UNLIMITED_BITS, 8e9)]
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    found = [Links(records).of(each) for each in records]
    assert [(link.bits, link.latency) for link in found] == [(0.9e9, 1e-4), (16e9, 1e-4), (8e9, 1e-4)]
    assert [link.processing for link in found] == [8 / 16e9, 8 / 16e9, 8 / 8e9]
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert Links(records).of(records[0]).processing == 0


@pytest.mark.parametrize(
    "settings, method, message",
    [
        ({"per_host": 2}, "int8", "measured with 2 workers on a host"),
        ({"threads": 4}, "int8", "measured with 4 threads a worker"),
        ({}, "ddp-fp16", "no step that can be predicted"),
    ],
)
def test_results_that_cannot_be_predicted_are_rejected(
    settings: dict[str, int],
    method: str,
    message: str,
    tmp_path: Path,
    root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = json.loads((root / "benchmarks" / "link-cnn.json").read_text())
    content["settings"] |= settings
    content["records"] = [{**content["records"][0], "method": method}]
    path = tmp_path / "link.json"
    path.write_text(json.dumps(content))
    assert main(["plan", "--check", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error and str(path) in error and error.count("\n") == 1
    assert main(["plan", "--check", str(path), "--validate", str(path)]) == 2
    assert "one after the other" in capsys.readouterr().err


def test_codecs_are_measured_again_on_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Path
) -> None:
    asked: list[bool] = []

    def measured(files: list[Path], on_stage: Callable[[str], None], *, fresh: bool) -> list[Comparison]:
        asked.append(fresh)
        return [Comparison("cnn", 2, "1gbit", "int8", 1.0, 1.0)]

    monkeypatch.setattr(plan_checks, "compare", measured)
    for more in ([], ["--fresh"]):
        out = str(tmp_path / "check.json")
        assert main(["plan", "--check", str(root / "benchmarks" / "link-cnn.json"), "--out", out, *more]) == 0
    assert asked == [False, True]
