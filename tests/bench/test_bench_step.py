"""Benchmarks of training steps: through DDP, optimizers and sharded models, `auto`, and local steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from grace_dl.bench import results
from grace_dl.cli.main import main


def test_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "step.json"
    command = ["bench", "step", "--quick", "--rounds", "3", "--methods", "none", "topk", "--out", str(out)]
    assert main([*command, "--through", "ddp,optimizer"]) == 0
    records = {results.label_of(r): r for r in results.load(out)["records"]}
    methods = ("none", "topk:0.01")
    assert set(records) == {"ddp", "ddp-fp16", *methods, *(f"{method} (optimizer)" for method in methods)}
    for method in methods:
        both = records[method], records[f"{method} (optimizer)"]
        assert [r["method"] for r in both] == [method, method]
        assert [r["through"] for r in both] == ["ddp", "optimizer"]
        assert min(r["collectives"] for r in both) >= 1
    assert records["topk:0.01"]["payload_bytes"] < records["none"]["payload_bytes"]
    assert records["none (optimizer)"]["payload_bytes"] == pytest.approx(
        records["none"]["payload_bytes"], rel=0.01
    )
    # Gradients are given here, so plain DDP alternates with each row.
    assert results.over_plain(records["topk:0.01"], records["ddp"]) == records["topk:0.01"]["over_ddp"] > 0
    assert results.over_plain(records["ddp"], records["ddp"]) == 1.0
    assert "÷ ddp" in capsys.readouterr().out


def test_auto_is_measured_once_it_has_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "step.json"
    command = ["bench", "step", "--quick", "--rounds", "3", "--methods", "ddp", "auto(bf16; topk:0.1)"]
    assert main([*command, "--out", str(out)]) == 0
    record = next(r for r in results.load(out)["records"] if r["method"] == "auto(bf16; topk:0.1)")
    assert record["choice"] and 11 <= record["settled_after"] <= 60
    assert f"after {record['settled_after']}" in " ".join(capsys.readouterr().out.split())


def test_local_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "step.json"
    rules = [f"local({rest})" for rest in ("none; every=4", "int4; every=4", "int4; every=4; delay=3")]
    command = ["bench", "step", "--quick", "--rounds", "9", "--methods", "ddp", "int4", *rules]
    assert main([*command, "--out", str(out)]) == 0
    records = {results.label_of(r): r for r in results.load(out)["records"]}
    assert set(records) == {"ddp", "int4", *rules}
    # Whole periods, and the bytes of an exchange spread over its steps.
    assert [records[rule]["rounds"] for rule in rules] == [8, 8, 8]
    for rule in rules[1:]:
        assert records[rule]["leaving_bytes"] == pytest.approx(records["int4"]["leaving_bytes"] / 4, rel=0.02)
    assert rules[0][:8] in capsys.readouterr().out


def test_steps_of_sharded_models(tmp_path: Path) -> None:
    out = tmp_path / "step.json"
    command = ["bench", "step", "--quick", "--rounds", "3", "--methods", "ddp", "int4", "--out", str(out)]
    assert main([*command, "--workers", "2", "--through", "hsdp"]) == 2  # no pairs
    assert main([*command, "--workers", "4", "--through", "fsdp,hsdp"]) == 0
    records = {results.label_of(r): r for r in results.load(out)["records"]}
    assert set(records) == {"fsdp", "fsdp (hsdp)", "ddp", "int4 (fsdp)", "int4 (hsdp)"}
    assert results.of_pytorch(records["fsdp"])
    # Between replicas of a half, compressed; within a pair, the gradients as they are.
    whole = 4 * 4 * (256 * 64 + 256 * 256 + 10 * 256 + 522)
    assert 0 < records["int4 (fsdp)"]["leaving_bytes"] < whole * 3 / 4 / 7
    assert records["int4 (hsdp)"]["leaving_bytes"] < whole / 2 + whole / 2 / 6


def test_only_sharded_models_reduce_the_gradients_of_every_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "step.json"
    command = ["bench", "step", "--quick", "--rounds", "3", "--methods", "int4", "--out", str(out)]
    assert main([*command, "--accumulate", "3", "--through", "optimizer"]) == 2
    assert "--accumulate 3 is not measured through an optimizer" in " ".join(capsys.readouterr().err.split())
    command += ["--workers", "2", "--through", "fsdp,ddp"]
    assert main([*command, "--accumulate", "3"]) == 0
    assert main(command) == 0
    sent = {
        (r["model"], r["through"]): r["leaving_bytes"]
        for r in results.load(out)["records"]
        if r["method"] == "int4"
    }
    assert sent["small-shapes 3 passes", "fsdp"] == 3 * sent["small-shapes", "fsdp"]
    assert sent["small-shapes 3 passes", "ddp"] == sent["small-shapes", "ddp"]
