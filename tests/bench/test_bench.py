"""Benchmarks of kernels run, say where they were made, and go on where they stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grace_dl.bench import kernels, results
from grace_dl.bench.models import resnet50_shapes
from grace_dl.cli.main import main
from grace_dl.errors import ConfigError
from grace_dl.formatting import parse_rate


def test_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "kernels.json"
    command = [
        "bench",
        "kernels",
        "--sizes",
        "1000",
        "--methods",
        "topk:0.1,topk",
        "powersgd",
        "--out",
        str(out),
    ]
    assert main([*command, "--threads", "1", "--backends", "reference"]) == 0
    content = results.load(out)
    assert {r["method"] for r in content["records"]} == {"topk:0.1", "topk:0.01", "powersgd:4"}
    for record in content["records"]:
        assert record["compress_copies"] == pytest.approx(record["compress_seconds"] / record["copy_seconds"])
    assert content["machine"]["torch"] and content["date"]
    assert out.with_suffix(".png").stat().st_size > 1000
    assert "topk:0.01" in capsys.readouterr().out


def test_finished_measurements_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "kernels.json"
    command = ["bench", "kernels", "--sizes", "1000", "--methods", "none", "--out", str(out)]
    command += ["--threads", "1", "--backends", "reference"]
    assert main(command) == 0
    before = out.read_text()

    def never(*arguments: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(kernels, "measure", never)
    assert main(command) == 0
    assert json.loads(out.read_text()) == json.loads(before)


def test_results_of_other_settings_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "kernels.json"
    command = ["bench", "kernels", "--methods", "none", "--out", str(out), "--threads", "1"]
    assert main([*command, "--backends", "reference", "--sizes", "1000"]) == 0
    assert main([*command, "--backends", "reference", "--sizes", "2000"]) == 2
    assert "--fresh" in capsys.readouterr().err


def test_rates() -> None:
    assert parse_rate("1gbit") == 1e9
    with pytest.raises(ConfigError, match="100mbit"):
        parse_rate("fast")


def test_resnet50_has_its_known_size() -> None:
    shapes = resnet50_shapes()
    total = 0
    for shape in shapes:
        count = 1
        for side in shape:
            count *= side
        total += count
    assert (len(shapes), total) == (161, 25_557_032)
