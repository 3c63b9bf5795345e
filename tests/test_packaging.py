"""What `pip install` ships: the whole package, also where there is no compiler; and what a release consists of."""

from __future__ import annotations

import doctest
import importlib.util
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import grace_dl
from script_modules import load


def run(*command: object, folder: Path) -> str:
    """The output of a Python module's command."""
    words = [sys.executable, "-m", *map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build", reason="needs build: pip install 'grace-dl[release]'")
    target = tmp_path_factory.mktemp("sdist")
    run("build", "--sdist", "--no-isolation", "--outdir", target, ".", folder=root)
    (found,) = target.glob("*.tar.gz")
    return found


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


def test_the_sdist_holds_everything_that_is_needed_to_build(sdist: Path, root: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = [*(root / "native").rglob("*.[ch]pp"), *(root / "src").rglob("*.py")]
    needed = {path.relative_to(root).as_posix() for path in sources}
    needed |= {"CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO"}
    assert needed <= names
    assert not [
        name for name in names if name.endswith(".so") or name.startswith((".venv", ".git", "build/"))
    ]
    assert sdist.name == f"grace_dl-{grace_dl.__version__}.tar.gz"


def test_the_sdist_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    options = ["--no-deps", "--no-build-isolation", "-C", "wheel.cmake=false", "-w", tmp_path]
    run("pip", "wheel", "--quiet", *options, sdist, folder=tmp_path)
    (built,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as ours, zipfile.ZipFile(wheel) as theirs:
        assert sorted(ours.namelist()) == sorted(theirs.namelist())


def test_the_compiled_module_needs_nothing_but_the_system(tmp_path: Path) -> None:
    """A wheel with it gets a manylinux tag, and no library has to be copied into it."""
    pytest.importorskip("auditwheel", reason="needs auditwheel: pip install 'grace-dl[release]'")
    compiled = importlib.util.find_spec("grace_dl._native")
    if compiled is None or compiled.origin is None:
        pytest.skip("the compiled kernels are not built")
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    wheel = tmp_path / f"grace_dl-{grace_dl.__version__}-{tag}-{tag}-linux_{platform.machine()}.whl"
    module, info = f"grace_dl/{Path(compiled.origin).name}", f"grace_dl-{grace_dl.__version__}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(compiled.origin, module)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
        archive.writestr(f"{info}/RECORD", f"{module},,\n")  # auditwheel looks at what is listed here
    shown = " ".join(run("auditwheel", "show", wheel, folder=tmp_path).split())
    assert re.search(r"consistent with the following platform tag: \"manylinux_2_\d+_\w+\"", shown), shown
    assert "external shared libraries are required" not in shown


def test_every_dependency_of_ours_is_pinned(root: Path) -> None:
    pinned = {
        _normal(line.partition("==")[0]) for line in (root / "constraints.txt").read_text().splitlines()
    }
    text = (root / "pyproject.toml").read_text()
    extras = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    named = {_normal(name) for name in re.findall(r'"([A-Za-z][\w.-]*)(?:\[\w+\])?>=', extras)}
    elsewhere = {"triton", "tensorboard"}  # not part of our own set-up
    assert {"sphinx", "build", "lightning", "pytest"} <= named
    assert named - elsewhere <= pinned


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def changelog(root: Path) -> ModuleType:
    return load(root / "scripts" / "changelog.py")


def test_the_changelog_follows_its_rules(changelog: ModuleType, root: Path) -> None:
    text = (root / "CHANGELOG.md").read_text("utf-8")
    changelog.check(text, grace_dl.__version__)
    assert changelog.package_version() == grace_dl.__version__
    assert changelog.notes(text, "Unreleased")
    assert doctest.testmod(changelog).failed == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("## 0.1.0 (2026-11-01)", "the first heading must be"),
        ("## Unreleased\n## 0.1.0", "must be a version and a date"),
        ("## Unreleased\n## 0.1.0 (2026-13-01)", "month must be in"),
        ("## Unreleased\n## 0.1.0 (2026-11-01)\n## 0.2.0 (2026-10-01)", "newest first"),
        ("## Unreleased\n## 0.2.0 (2026-10-01)\n## 0.1.0 (2026-11-01)", "newest first"),
        ("## Unreleased\n## 9.0.0 (2026-11-01)", "older than the latest release"),
    ],
)
def test_a_wrong_changelog_is_rejected(changelog: ModuleType, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        changelog.check(text, "1.0.0")
