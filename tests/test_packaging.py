"""What `pip install` ships: the whole package, also where there is no compiler."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import grace_dl


def test_the_wheel_holds_every_module(wheel: Path, root: Path) -> None:
    source = root / "src"
    expected = {
        str(path.relative_to(source)) for path in source.rglob("*.py*") if path.suffix in (".py", ".pyi")
    }
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert expected <= names
    assert {f"{package}/py.typed" for package in ("grace_dl", "acpsgd", "dgc")} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_it_works_without_the_compiled_part(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in type(f).__module__]\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import torch, acpsgd, dgc.optim, grace_dl\n"
        "from grace_dl import catalog, kernels\n"
        f"assert grace_dl.__file__.startswith({str(tmp_path)!r}), grace_dl.__file__\n"
        "assert kernels.of(torch.empty(0)).__name__ == 'grace_dl.kernels.reference'\n"
        "x = torch.randn(5000)\n"
        "for name in catalog.methods():\n"
        "    grace_dl.manual(name).step(x, 'x')\n"
        "print('fine')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == "fine", done.stderr


def test_the_version_is_written_once(wheel: Path) -> None:
    assert wheel.name.split("-")[1] == grace_dl.__version__
