"""Benchmarks between hosts with links of a rate: step times, and the bytes on the wire."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grace_dl.bench import results
from grace_dl.bench.virtual_hosts import able
from grace_dl.cli.main import main


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
