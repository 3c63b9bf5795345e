"""`grace plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grace_dl.cli.commands import plan
from grace_dl.cli.main import main
from grace_dl.formatting import escape
from grace_dl.plan.profile import Profile

FIGURES = ["--parameters", "2M", "--backward", "20ms"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_plan_is_shown_saved_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "plan",
        *FIGURES,
        "--cluster",
        "4x2@100mbit",
        "--methods",
        "int8,topk:0.01",
        "--latency",
        "50us",
    ]
    assert main([*command, "--out", "made/plan.json"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "Predicted training step on 4×2 @ 100 Mbit/s, 8 workers",
        "int8",
        "topk:0.01",
        "10,000",
        "Use ",
    ):
        assert text in shown
    content = json.loads((tmp_path / "made/plan.json").read_text())
    here = {r["method"]: r for r in content["records"] if r["kind"] == "here"}
    assert set(here) == {"ddp", "int8", "topk:0.01"}
    assert here["ddp"]["speedup"] == 1 and here["int8"]["speedup"] > 1
    page = (tmp_path / "made/plan.html").read_text()
    assert "Speed-up over plain DDP by workers" in page and escape(content["settings"]["verdict"]) in page
    assert main(["report", "made/plan.json", "--out", "again.html"]) == 0


def test_a_plan_includes_the_period_of_local_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", *FIGURES, "--cluster", "4@100mbit", "--methods", "int8", "local(int8; every=50)"]
    assert main([*command, "--out", "plan.json"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "local(int8; every=50): in every 50 steps" in shown and "Local steps would be faster" in shown
    content = json.loads((tmp_path / "plan.json").read_text())
    here = {r["method"]: r for r in content["records"] if r["kind"] == "here"}
    local, method = here["local(int8; every=50)"], here["int8"]
    assert local["every"] == 50 and local["exchange_bytes"] == pytest.approx(method["leaving_bytes"])
    assert local["leaving_bytes"] == pytest.approx(method["leaving_bytes"] / 50)
    assert "Exchanges of local steps" in (tmp_path / "plan.html").read_text()


def test_models_and_profiles_are_sources_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "small-shapes", "--methods", "int8", "--cluster", "2@1gbit"]) == 0
    assert "small-shapes" in capsys.readouterr().out
    Profile.from_figures(parameters=1e6, backward=0.01).save(tmp_path / "profile.json")
    assert main(["plan", "--profile", "profile.json", "--methods", "int8", "--backward", "40ms"]) == 0
    assert "backward 40.0 ms" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, message",
    [
        ([], "given by one of --profile"),
        (["--model", "cnn", "--parameters", "2M"], "--model and --parameters"),
        (["--parameters", "2M"], "--parameters needs the time of a backward pass"),
        (["--parameters", "many", "--backward", "1s"], "is no number of parameters"),
        (["--parameters", "-5", "--backward", "1s"], "parameters=-5"),
        (["--parameters", "2M", "--backward", "soon"], "--backward 'soon' is no duration"),
        ([*FIGURES, "--cluster", "lots"], "'lots' is no cluster"),
        ([*FIGURES, "--cluster", "0x8@1gbit"], "nodes=0"),
        ([*FIGURES, "--cluster", "9999999x8@1gbit"], "79,999,992 workers"),
        ([*FIGURES, "--cluster", "4x2@unlimited"], "a plan needs the rate of the link"),
        ([*FIGURES, "--cluster", "4x2@fast"], "write 100mbit, 1gbit, 10gbit or 400gbit.\n"),
        ([*FIGURES, "--cluster", ""], "'' is no cluster"),
        ([*FIGURES, "--engine", ""], "engine=''"),
        ([*FIGURES, "--steps", "20"], "--steps has no effect without a command"),
        (["--parameters", "1e13", "--backward", "1s"], "must be a number in [1, 2e+12]"),
        (
            ["--check", "x.json", "--latency", "3us", "--model", "cnn"],
            "--model, --latency have no effect with --check",
        ),
        (["--check", "x.json", "--report", "x.html", "--steps", "20"], "--report, --steps have no effect"),
        (
            ["--validate", "x.csv", "--fresh", "--methods", "int8"],
            "--methods, --fresh have no effect with --validate",
        ),
        ([*FIGURES, "--engine", "mpi"], "engine='mpi'"),
        ([*FIGURES, "--latency", "1"], "--latency '1' is no duration"),
        ([*FIGURES, "--inner-rate", "fast"], "rate 'fast' is no link rate"),
        ([*FIGURES, "--methods", "topkk"], "did you mean 'topk'"),
        ([*FIGURES, "--methods", "auto"], "--methods bf16 int8 topk:0.01 powersgd:4"),
        ([*FIGURES, "--methods", "topk:communicator=allreduce"], "cannot go through allreduce"),
        (["--profile", "missing.json"], "missing.json cannot be read"),
        (["--model", "resnet51"], "unknown model 'resnet51'"),
    ],
)
def test_wrong_input_gets_one_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *options]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_links_within_a_node_may_be_unlimited(tmp_path: Path) -> None:
    options = [
        "--cluster",
        "2x2@1gbit",
        "--inner-rate",
        "unlimited",
        "--methods",
        "int8",
        "--out",
        "plan.json",
    ]
    assert main(["plan", *FIGURES, *options]) == 0
    assert "Infinity" not in (tmp_path / "plan.json").read_text()
    assert main(["report", "plan.json"]) == 0


def test_the_page_is_not_the_result_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_predict", lambda *arguments: pytest.fail("it was predicted"))
    assert main(["plan", *FIGURES, "--out", "q.json", "--report", "./q.json"]) == 2
    assert "--report q.json is the result file, too; write q.html." in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
