"""Tests under real Horovod. `scripts/test_horovod.sh` makes an environment that has it, and runs them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
INSTALLED = importlib.util.find_spec("horovod") is not None

if not INSTALLED and not os.environ.get("GRACE_TEST_HOROVOD"):
    # Without Horovod there is nothing to collect; the test command runs this folder in an environment that has it.
    collect_ignore_glob = ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "horovod: runs under real Horovod; leave out with -m 'not horovod'")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not INSTALLED:
        terminalreporter.write_line(
            "tests/hvd needs Horovod, which is not in this environment: scripts/test_horovod.sh"
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.horovod)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(1200))
