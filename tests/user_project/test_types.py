"""A user's project: type checkers resolve the names of the installed wheel, and find mistakes in their use."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAMS = ("program.py", "original_lines.py")
WRONG = "wrong.py"


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with the wheel, and the frameworks of this one."""
    folder = tmp_path_factory.mktemp("project") / "venv"
    venv.create(folder, with_pip=False)
    packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(packages),
        str(wheel),
    ]
    subprocess.run(install, check=True, timeout=240)
    # Found after the environment's own packages; its own .pth files, such as that of the editable install, are not read.
    (packages / "frameworks.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module", params=["mypy", "pyright"])
def errors(
    request: pytest.FixtureRequest, python: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[int, str]]:
    """What a type checker finds in all programs: by file, lines and messages."""
    folder = tmp_path_factory.mktemp(request.param)
    for program in (*PROGRAMS, WRONG):
        (folder / program).write_text((HERE / program).read_text())
    found: dict[str, dict[int, str]] = {program: {} for program in (*PROGRAMS, WRONG)}
    for program, line, message in {"mypy": _mypy, "pyright": _pyright}[request.param](python, folder):
        found[program][line] = message
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_everything_is_resolved(errors: dict[str, dict[int, str]], program: str) -> None:
    assert not errors[program]


def test_mistakes_are_found(errors: dict[str, dict[int, str]]) -> None:
    lines = (HERE / WRONG).read_text().splitlines()
    assert set(errors[WRONG]) == {number for number, line in enumerate(lines, 1) if "  # " in line}


def _mypy(python: Path, folder: Path) -> Iterator[tuple[str, int, str]]:
    options = ["--config-file=", "--strict", f"--python-executable={python}"]
    done = _run([sys.executable, "-m", "mypy", *options, *PROGRAMS, WRONG], folder)
    for program, line, message in re.findall(r"^(\w+\.py):(\d+): error: (.*)", done, re.MULTILINE):
        yield program, int(line), message


def _pyright(python: Path, folder: Path) -> Iterator[tuple[str, int, str]]:
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard"}))
    done = _run([sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", str(python)], folder)
    for found in json.loads(done)["generalDiagnostics"]:
        if found["severity"] == "error":
            yield Path(found["file"]).name, found["range"]["start"]["line"] + 1, found["message"]


def _run(command: list[str], folder: Path) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280).stdout
