"""A user's project: type checkers resolve the names of the installed wheel, and find mistakes in their use."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAMS = ("program.py", "original_lines.py")


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with the wheel, and the frameworks of this one."""
    folder = tmp_path_factory.mktemp("project") / "venv"
    venv.create(folder, with_pip=False)
    packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages), str(wheel)]
    subprocess.run(install, check=True, timeout=240)
    # Found after the environment's own packages; its own .pth files, such as that of the editable install, are not read.
    (packages / "frameworks.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    return folder / "bin" / "python"


@pytest.mark.parametrize("program", PROGRAMS)
def test_mypy_resolves_everything(python: Path, program: str, tmp_path: Path) -> None:
    done = _mypy(python, program, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_finds_mistakes(python: Path, tmp_path: Path) -> None:
    found = {int(line) for line in re.findall(r"wrong\.py:(\d+): error", _mypy(python, "wrong.py", tmp_path).stdout)}
    assert found == _mistakes()


@pytest.mark.parametrize("program", PROGRAMS)
def test_pyright_resolves_everything(python: Path, program: str, tmp_path: Path) -> None:
    assert not _pyright(python, program, tmp_path)


def test_pyright_finds_mistakes(python: Path, tmp_path: Path) -> None:
    assert {line for line, _ in _pyright(python, "wrong.py", tmp_path)} == _mistakes()


def _mypy(python: Path, program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / program).write_text((HERE / program).read_text())
    command = [sys.executable, "-m", "mypy", "--config-file=", "--strict", f"--python-executable={python}", program]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)


def _pyright(python: Path, program: str, folder: Path) -> list[tuple[int, str]]:
    """Lines and messages of all errors."""
    (folder / program).write_text((HERE / program).read_text())
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard"}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", str(python), program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    errors = [d for d in json.loads(done.stdout)["generalDiagnostics"] if d["severity"] == "error"]
    return [(d["range"]["start"]["line"] + 1, d["message"]) for d in errors]


def _mistakes() -> set[int]:
    lines = (HERE / "wrong.py").read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if "  # " in line}
