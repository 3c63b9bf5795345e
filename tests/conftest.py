"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Ranks unpickle the launcher's own classes, so it has one name everywhere: `launch`.
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from launch import Launcher  # noqa: E402


@pytest.fixture(scope="session")
def launch() -> Iterator[Launcher]:
    """`launch(fn, world, *args, timeout=60)`: run `fn(rank, world, *args)` on real ranks; see launch.py."""
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT
