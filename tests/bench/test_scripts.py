"""`perf.sh` and `batch.sh` as their first lines say, on this machine and on a list of hosts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grace_dl.bench import remote_hosts, results
from grace_dl.errors import ConfigError

NONE = dict.fromkeys("opt dnn bs rank senlen imgsize rounds hosts opts dnns out".split(), "")


def bash(root: Path, script: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **NONE, "PY": sys.executable, "PYTHONPATH": str(root / "src"), **settings}
    return subprocess.run(
        ["bash", script],
        cwd=root / "examples" / "acpsgd",
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def labels(path: Path) -> list[str]:
    return [record["id"] for record in results.load(path)["records"]]


def test_perf(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "perf.json"
    settings = {"opt": "acpsgd", "rank": "2", "dnn": "resnet18", "bs": "2", "imgsize": "32", "rounds": "3"}
    done = bash(root, "perf.sh", **settings, nworkers="2", out=str(out))
    assert done.returncode == 0, done.stderr
    prefix = "resnet18 bs2 32px/2/loopback"
    assert labels(out) == [f"{prefix}/ddp", f"{prefix}/acpsgd:2"]
    for word in ("silent", "ddp", "acpsgd:2", "Samples per second"):
        assert word in done.stdout


def test_batch_goes_on_where_it_stopped(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "batch.json"
    first = bash(root, "batch.sh", full="1", dnns="small-shapes", opts="ssgd", rounds="3", out=str(out))
    assert first.returncode == 0, first.stderr
    before = results.load(out)["records"]
    sizes = {"imgsize": "32", "bs": "2", "rounds": "3"}
    done = bash(root, "batch.sh", dnns="small-shapes cnn", **sizes, out=str(out))
    assert done.returncode == 0, done.stderr
    assert results.load(out)["records"][:1] == before
    opts = ("ddp", "powersgd:4", "acpsgd:4")
    models = ("small-shapes", "cnn bs2 32px")
    assert labels(out) == [f"{model}/2/loopback/{opt}" for model in models for opt in opts]
    assert "ms per step (÷ ddp" in done.stdout


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dnn": "resnte50"}, "did you mean 'resnet50'"),
        ({"opt": "acpsdg"}, "did you mean 'acpsgd'"),
        ({"rank": "0"}, "rank=0 must be"),
        ({"dnn": "resnet18", "bs": "0"}, "--batch-size: '0' must be"),
        ({"hosts": "node1 node2", "nworkers": "3"}, "spread evenly"),
        ({"hosts": "localhost node2"}, "cannot reach 'localhost'"),
        ({"hosts": "-oProxyCommand=touch% node2"}, "is no name of a host"),
    ],
)
def test_wrong_settings_are_said_before_anything_starts(
    root: Path, tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    out = tmp_path / "never.json"
    done = bash(root, "perf.sh", **{"dnn": "small-shapes", **settings}, out=str(out))
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert not out.exists()


def fake_ssh(folder: Path, then: str) -> dict[str, str]:
    """An ssh for tests: notes the host and does `then` with the command line."""
    script = folder / "ssh"
    script.write_text(
        f'#!/bin/sh\nfor last; do before=$host; host=$last; done\necho "$before" >> {folder}/log\n{then}\n'
    )
    script.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_hosts_are_reached_by_ssh(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "hosts.json"
    # Names that lead to this machine, but are not known to be it.
    path = fake_ssh(tmp_path, 'exec sh -c "$last"')
    hosts = "0.0.0.0 0"
    settings = {"dnn": "small-shapes", "rounds": "3", "hosts": hosts, "out": str(out), "ETH_INTERFACE": "lo"}
    done = bash(root, "perf.sh", **settings, **path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted((tmp_path / "log").read_text().split()) == ["0", "0.0.0.0"]
    assert labels(out) == [f"small-shapes/2/2 hosts/{label}" for label in ("ddp", "acpsgd:4")]


def test_a_host_out_of_reach_ends_all(root: Path, tmp_path: Path) -> None:
    path = fake_ssh(tmp_path, '[ "$before" = bad ] && exit 255; exec sh -c "$last"')
    settings = {"dnn": "small-shapes", "hosts": "0.0.0.0 bad", "out": str(tmp_path / "x.json")}
    done = bash(root, "perf.sh", **settings, **path)
    assert done.returncode == 2
    assert "bad ended with exit code 255: ssh could not connect" in done.stderr


def test_an_agent_ends_with_its_caller(tmp_path: Path) -> None:
    job = {"function": ["time", "sleep"], "arguments": [], "hosts": 2, "each": 1, "place": 1}
    command = remote_hosts._command("localhost", {**job, "address": "127.0.0.1", "port": 1, "silence": 60})
    agent = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    time.sleep(3)
    assert agent.poll() is None
    assert agent.stdin is not None
    agent.stdin.close()
    agent.wait(30)


def test_lists_of_hosts() -> None:
    assert remote_hosts.parse("a, b c", 6) == ["a", "b", "c"]
    assert remote_hosts.parse("", 3) == []
    with pytest.raises(ConfigError, match="twice"):
        remote_hosts.parse("a b a", 3)
