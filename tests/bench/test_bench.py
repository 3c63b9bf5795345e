"""Benchmarks run, say where they were made, and go on where they stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from grace_dl.bench import kernels, results
from grace_dl.bench.models import resnet50_shapes
from grace_dl.bench.virtual_hosts import able
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


@pytest.mark.skipif(able() is not None, reason=f"hosts with links of a rate cannot be made here: {able()}")
def test_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "link.json"
    command = ["bench", "link", "--quick", "--rounds", "3", "--methods", "topk", "--out", str(out)]
    assert main([*command, "--rate", "20mbit,unlimited"]) == 0
    records = {(r["rate"], r["method"]): r for r in results.load(out)["records"]}
    # No machine sends 1.4 MB of gradients over 20 Mbit/s in less than half a second.
    assert records["20mbit", "ddp"]["seconds"] > 0.4
    assert (
        records["20mbit", "topk:0.01"]["payload_bytes"] == records["unlimited", "topk:0.01"]["payload_bytes"]
    )
    assert out.with_suffix(".png").exists()
    assert not list(Path("/run/netns").glob(f"grace-{os.getpid()}-*"))


@pytest.mark.skipif(able() is not None, reason=f"hosts with links of a rate cannot be made here: {able()}")
def test_reported_bytes_are_those_on_the_wire(tmp_path: Path) -> None:
    out = tmp_path / "traffic.json"
    command = ["bench", "traffic", "--quick", "--workers", "2,3", "--out", str(out)]
    assert main(command) == 0
    assert main([*command, "--methods", "topk:0.1"]) == 0
    assert {r["workers"] for r in results.load(out)["records"] if r["method"] == "topk:0.1"} == {2, 3}
    for record in results.load(out)["records"]:
        # Interfaces count protocol headers too, and acknowledgements of what comes in.
        overhead = 0.03 * record["payload_bytes"] * record["workers"] + 2000 * record["workers"]
        assert 0 <= record["measured_bytes"] - record["leaving_bytes"] < overhead, record


@pytest.mark.skipif(able() is not None, reason=f"hosts with links of a rate cannot be made here: {able()}")
def test_two_levels_send_between_hosts_what_one_rank_a_host_sends(tmp_path: Path) -> None:
    """Read from the interfaces of two and three hosts with two ranks each."""
    methods = ["int4:communicator=alltoall", "topk:0.01,communicator=allgather"]
    levels = [f"hierarchical(inner=none; outer={method})" for method in methods]
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    assert (
        main(["bench", "traffic", "--quick", "--workers", "2,3", "--out", str(one), "--methods", *methods])
        == 0
    )
    command = ["bench", "traffic", "--quick", "--workers", "4,6", "--per-host", "2", "--out", str(two)]
    assert main([*command, "--methods", *methods, *levels]) == 0
    flat = {(r["workers"], r["method"]): r["measured_bytes"] for r in results.load(one)["records"]}
    records = {(r["hosts"], r["method"]): r["measured_bytes"] for r in results.load(two)["records"]}
    for hosts in (2, 3):
        for method, level in zip(methods, levels):
            # The ranks of a step also tell each other that it was finite.
            assert flat[hosts, method] <= records[hosts, level] * 1.01 < flat[hosts, method] * 1.1 + 4000
            assert records[hosts, level] < 0.7 * records[hosts, method]


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
