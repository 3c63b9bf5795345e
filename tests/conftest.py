"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Ranks unpickle the launcher's own classes, so it has one name everywhere: `launch`.
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Codec costs that examples measure do not go to the user's cache.
os.environ.setdefault("GRACE_CACHE", str(ROOT / ".pytest_cache" / "grace"))

from launch import Launcher  # noqa: E402
from launcher_environment import changed  # noqa: E402


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Whatever variables a test sets, also through a library that it calls, the next one does not see."""
    with changed({}):
        yield


@pytest.fixture(scope="session")
def launch() -> Iterator[Launcher]:
    """`launch(fn, world, *args, timeout=120)`: run `fn(rank, world, *args)` on real ranks; see launch.py."""
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built without the compiled part, as on a machine without a compiler."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--quiet"]
    options = ["-C", "wheel.cmake=false", "-C", f"build-dir={target / 'build'}", "-w", str(target)]
    subprocess.run([*command, *options], check=True, cwd=ROOT, timeout=240)
    (found,) = target.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT
