"""`grace plan --validate` and `--check`: the cost model beside measurements."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from grace_dl.bench.plan_validation import COLUMNS, Measurements, exchange_factor, rank_correlation
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


def test_the_published_validation_keeps_its_promises(root: Path) -> None:
    content = json.loads((root / "benchmarks" / "plan-public.json").read_text())
    fitted = sorted(abs(r["predicted"] / r["measured"] - 1) for r in content["records"] if r["fitted"])
    assert fitted[len(fitted) // 2] <= TYPICAL_ERROR
    assert fitted[int(0.9 * len(fitted))] <= LARGE_ERROR + 0.005
    assert {r["model"] for r in content["records"]} == {
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
