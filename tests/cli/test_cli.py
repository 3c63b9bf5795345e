"""The `grace` command."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import grace_dl
from grace_dl import methods
from grace_dl.cli import catalogue
from grace_dl.cli.main import main, subcommands
from grace_dl.registry import BUILTIN


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["--version"])
    assert leaving.value.code == 0
    assert capsys.readouterr().out == f"grace {grace_dl.__version__}\n"


def test_every_subcommand_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name, module in subcommands().items():
        assert module.SUMMARY
        with pytest.raises(SystemExit) as leaving:
            main([name, "--help"])
        assert leaving.value.code == 0
        assert "usage: grace " + name in capsys.readouterr().out


def test_methods_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    for name in BUILTIN:
        assert name in shown


@pytest.mark.parametrize("width, whole", [(80, False), (120, True)])
def test_methods_break_no_word_in_a_narrow_terminal(width: int, whole: bool) -> None:
    out = io.StringIO()
    chosen = [methods()[name] for name in BUILTIN]
    catalogue.show(chosen, Console(file=out, width=width))
    shown = out.getvalue()
    assert shown.count("allgather") == sum("allgather" in record.communicators for record in chosen)
    assert ("reference" in shown.splitlines()[2]) == whole


@pytest.mark.parametrize("name", BUILTIN)
def test_methods_explains_each(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", name]) == 0
    shown = capsys.readouterr().out
    assert methods()[name].reference.split(",")[0] in shown
    for parameter in methods()[name].parameters:
        if parameter.name not in catalogue.HIDDEN:
            assert parameter.name in shown


def test_methods_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in table][: len(BUILTIN)] == BUILTIN
    topk = next(row for row in table if row["name"] == "topk")
    assert topk["parameters"]["compress_ratio"] == 0.3
    assert topk["memories"][0] == "residual"
    assert "allgather" in topk["communicators"]


def test_every_builtin_is_fully_described() -> None:
    for name in BUILTIN:
        record = methods()[name]
        assert record.summary, name
        assert record.bits, name
        assert record.reference, name
        assert record.communicator in record.communicators, name


def test_an_unknown_method_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "topkk"]) == 2
    said = capsys.readouterr().err
    assert "did you mean 'topk'?" in said
    assert "Traceback" not in said


def test_data_lists_and_refuses_unknown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRACE_DATA", str(tmp_path))
    assert main(["data"]) == 0
    assert "not fetched yet" in capsys.readouterr().out
    assert main(["data", "imagenet"]) == 2
    assert "imagenet" in capsys.readouterr().err


def test_installed_as_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "grace_dl.cli", "--version"], check=True, capture_output=True, text=True
    )
    assert done.stdout == f"grace {grace_dl.__version__}\n"


def test_methods_page_is_current(root: Path) -> None:
    page = (root / "docs" / "methods.md").read_text()
    builtin = [record for name, record in methods().items() if name in BUILTIN]
    assert page == catalogue.as_markdown(builtin), "run: grace methods --markdown > docs/methods.md"
