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
from grace_dl import catalog
from grace_dl.algebra.text import EXAMPLES
from grace_dl.cli import method_listing
from grace_dl.cli.main import main, subcommands

BUILTIN = catalog.builtin_names()


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
    chosen = [catalog.info(name) for name in BUILTIN]
    method_listing.show(chosen, Console(file=out, width=width))
    shown = out.getvalue()
    assert shown.count("allgather") == sum("allgather" in catalog.communicators_of(info) for info in chosen)
    assert ("reference" in shown.splitlines()[2]) == whole


@pytest.mark.parametrize("name", BUILTIN)
def test_methods_explains_each(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", name]) == 0
    shown = capsys.readouterr().out
    info = catalog.info(name)
    assert info.reference.split(",")[0] in shown
    assert f"grace.{name}(" in shown and str(grace_dl.parse(name)) in shown
    for setting in catalog.settings_of(info):
        assert setting in shown


def test_methods_explains_settings(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = []
    for text in ("topk:0.1", "topk:ratio=0.001"):
        assert main(["methods", text]) == 0
        shown = capsys.readouterr().out
        assert str(grace_dl.parse(text)) in shown
        sizes.append(next(line for line in shown.splitlines() if line.startswith("wire size")))
    assert sizes[0] != sizes[1]


@pytest.mark.parametrize("text", EXAMPLES.values())
def test_methods_explains_compositions(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    assert text in capsys.readouterr().out.replace("\n", "")
    assert main(["methods", text]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(str(grace_dl.parse(text))) and "Its parts:" in shown.replace("\n", " ")


def test_methods_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in table} >= set(BUILTIN)
    topk = next(row for row in table if row["name"] == "topk")
    assert topk["settings"]["ratio"] == 0.01 and topk["text"] == "topk:0.01"
    assert topk["constructor"].startswith("grace.topk(ratio=0.01, ")
    assert topk["memories"][0] == "residual"
    assert "allgather" in topk["communicators"]


def test_every_builtin_is_fully_described() -> None:
    for name in BUILTIN:
        info = catalog.info(name)
        assert info.summary and info.bits and info.reference, name
        assert {way for _, way in catalog.defaults_of(info)} <= set(catalog.communicators_of(info)), name


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
    builtin = [info for name, info in catalog.methods().items() if name in BUILTIN]
    assert page == method_listing.as_markdown(builtin), "run: grace methods --markdown > docs/methods.md"
